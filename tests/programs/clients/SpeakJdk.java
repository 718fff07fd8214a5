// The JDK's HttpClient as its users have it: a client with its defaults offers an upgrade to HTTP/2 (h2c) on http://,
// with each request. The bodies are of the shapes that LangChain4j and Spring AI send through it.
// One file, no package to fetch:
//     java SpeakJdk.java

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

public class SpeakJdk {
  static final String URL = System.getenv("CLIENT_URL"); // without /v1; {case} in it is the name of the case
  static final String KEY = System.getenv().getOrDefault("CLIENT_KEY", "lw_live_nobody");
  static final String MODEL = System.getenv().getOrDefault("CLIENT_MODEL", "smollm2-135m-instruct");
  static final Duration PATIENCE = Duration.ofSeconds(60);
  static final int PARALLEL = 8;
  static final int LARGE_WORDS = 200; // with LARGE_PADDING: several packets
  static final int LARGE_PADDING = 100_000; // spaces in the JSON, so that no context is exceeded
  static final Pattern CONTENT = Pattern.compile("\"(?:content|text)\":\"((?:[^\"\\\\]|\\\\.)*)\"");

  static final String PLAIN =
      "{\"model\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"Say hello.\"}],\"max_tokens\":8%s}";

  // LangChain4j: OpenAiChatModel prints its JSON over several lines, without null fields.
  static final String LANGCHAIN4J =
      """
      {
        "model" : "%s",
        "messages" : [ {
          "role" : "system",
          "content" : "You are terse."
        }, {
          "role" : "user",
          "content" : "Say hello."
        }, {
          "role" : "assistant",
          "content" : "Hello."
        }, {
          "role" : "user",
          "name" : "ada",
          "content" : [ {
            "type" : "text",
            "text" : "Again, "
          }, {
            "type" : "text",
            "text" : "please."
          } ]
        } ],
        "temperature" : 0.7,
        "stream" : %s,%s
        "max_tokens" : 8
      }""";

  // Spring AI: OpenAiChatModel, the content before the role.
  static final String SPRING =
      "{\"messages\":[{\"content\":\"You are terse.\",\"role\":\"system\"},{\"content\":\"Say hello.\",\"role\":\"user\"},"
          + "{\"content\":\"Hello.\",\"role\":\"assistant\"},{\"content\":\"Again.\",\"role\":\"user\"}],"
          + "\"model\":\"%s\",\"max_tokens\":8,\"stream\":%s,\"temperature\":0.7%s}";

  // LangChain4j: AnthropicChatModel.
  static final String ANTHROPIC =
      """
      {
        "model" : "%s",
        "messages" : [ {
          "role" : "user",
          "content" : [ {
            "type" : "text",
            "text" : "Say hello."
          } ]
        } ],
        "system" : [ {
          "type" : "text",
          "text" : "You are terse."
        } ],
        "max_tokens" : 8,
        "stream" : %s
      }""";

  static final String TOOLS = ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";
  static final String WITH_USAGE = ",\"stream_options\":{\"include_usage\":true}";
  static final String WITH_USAGE_LINES = "\n  \"stream_options\" : {\n    \"include_usage\" : true\n  },";

  interface Case {
    Object run(String url) throws Exception;
  }

  static String lower(boolean value) {
    return Boolean.toString(value);
  }

  static HttpRequest.Builder to(String url, String path) {
    return HttpRequest.newBuilder(URI.create(url + path)).timeout(PATIENCE).header("Content-Type", "application/json");
  }

  static HttpRequest chat(String url, BodyPublisher body) {
    return to(url, "/v1/chat/completions").header("Authorization", "Bearer " + KEY).POST(body).build();
  }

  static HttpRequest chat(String url, String body) {
    return chat(url, BodyPublishers.ofString(body));
  }

  /** Without a length, as RestClient writes a body: in chunks. */
  static BodyPublisher chunked(String body) {
    return BodyPublishers.fromPublisher(BodyPublishers.ofString(body));
  }

  static class Refused extends RuntimeException {
    final int status;

    Refused(HttpResponse<?> answer, String text) {
      super(text);
      status = answer.statusCode();
    }
  }

  static String check(HttpResponse<String> answer) {
    if (answer.statusCode() != 200) throw new Refused(answer, answer.body());
    if (answer.version() != HttpClient.Version.HTTP_1_1) throw new IllegalStateException("" + answer.version());
    return answer.body();
  }

  static String content(HttpResponse<String> answer) {
    Matcher found = CONTENT.matcher(check(answer).replaceAll("\\s*:\\s*\"", ":\""));
    if (!found.find()) throw new IllegalStateException("no content: " + answer.body());
    return found.group(1);
  }

  static String ask(HttpRequest request) throws Exception {
    return content(HttpClient.newHttpClient().send(request, BodyHandlers.ofString()));
  }

  /** The text of a stream, by its lines as they arrive. */
  static String stream(HttpRequest request, String last) throws Exception {
    HttpResponse<java.io.InputStream> answer =
        HttpClient.newHttpClient().send(request, BodyHandlers.ofInputStream());
    List<String> lines = new ArrayList<>();
    try (BufferedReader reader =
        new BufferedReader(new InputStreamReader(answer.body(), StandardCharsets.UTF_8))) {
      for (String line; (line = reader.readLine()) != null; ) if (!line.isEmpty()) lines.add(line);
    }
    if (answer.statusCode() != 200) throw new Refused(answer, String.join("\n", lines));
    if (!lines.get(lines.size() - 1).replace(" ", "").startsWith(last)) throw new IllegalStateException("cut: " + lines);
    Matcher found = CONTENT.matcher(String.join("\n", lines).replaceAll("\\s*:\\s*\"", ":\""));
    StringBuilder text = new StringBuilder();
    while (found.find()) text.append(found.group(1));
    if (text.length() == 0) throw new IllegalStateException("no text: " + lines);
    return text.toString();
  }

  static Object reused(String url) throws Exception {
    HttpClient client = HttpClient.newHttpClient(); // one connection, an offered upgrade on each request
    List<String> texts = new ArrayList<>();
    for (int i = 0; i < 3; i++)
      texts.add(content(client.send(chat(url, String.format(PLAIN, MODEL, "")), BodyHandlers.ofString())));
    return texts;
  }

  static Object parallel(String url) {
    HttpClient client = HttpClient.newHttpClient();
    HttpRequest request = chat(url, String.format(PLAIN, MODEL, ""));
    List<CompletableFuture<String>> asked = new ArrayList<>();
    for (int i = 0; i < PARALLEL; i++)
      asked.add(client.sendAsync(request, BodyHandlers.ofString()).thenApply(SpeakJdk::content));
    return asked.stream().map(CompletableFuture::join).collect(Collectors.toList());
  }

  static Object large(String url) throws Exception {
    String words = "tide ".repeat(LARGE_WORDS);
    String body = String.format(PLAIN, MODEL, " ".repeat(LARGE_PADDING)).replace("Say hello.", words);
    return ask(chat(url, body));
  }

  static HttpRequest anthropic(String url, boolean stream) {
    return to(url, "/v1/messages")
        .header("x-api-key", KEY)
        .header("anthropic-version", "2023-06-01")
        .POST(BodyPublishers.ofString(String.format(ANTHROPIC, MODEL, lower(stream))))
        .build();
  }

  static Object models(String url) throws Exception {
    HttpRequest request = to(url, "/v1/models").header("x-api-key", KEY).GET().build();
    String body = check(HttpClient.newHttpClient().send(request, BodyHandlers.ofString()));
    if (!body.contains(MODEL)) throw new IllegalStateException(body);
    return body;
  }

  static Object older(String url) throws Exception {
    HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    return content(client.send(chat(url, String.format(PLAIN, MODEL, "")), BodyHandlers.ofString()));
  }

  static Object expecting(String url) throws Exception {
    BodyPublisher body = BodyPublishers.ofString(String.format(PLAIN, MODEL, ""));
    return ask(HttpRequest.newBuilder(chat(url, body), (name, value) -> true).expectContinue(true).build());
  }

  static Map<String, Case> cases() {
    Map<String, Case> cases = new LinkedHashMap<>();
    cases.put("plain", url -> ask(chat(url, String.format(PLAIN, MODEL, ""))));
    cases.put("stream", url -> stream(chat(url, String.format(PLAIN, MODEL, ",\"stream\":true")), "data:[DONE]"));
    cases.put("langchain4j", url -> ask(chat(url, String.format(LANGCHAIN4J, MODEL, "false", ""))));
    cases.put(
        "langchain4j_stream",
        url -> stream(chat(url, String.format(LANGCHAIN4J, MODEL, "true", WITH_USAGE_LINES)), "data:[DONE]"));
    cases.put("spring", url -> ask(chat(url, chunked(String.format(SPRING, MODEL, "false", "")))));
    cases.put(
        "spring_stream",
        url -> stream(chat(url, chunked(String.format(SPRING, MODEL, "true", WITH_USAGE))), "data:[DONE]"));
    cases.put("anthropic", url -> ask(anthropic(url, false)));
    cases.put("anthropic_stream", url -> stream(anthropic(url, true), "data:{\"type\":\"message_stop\"}"));
    cases.put("models", SpeakJdk::models);
    cases.put("reused", SpeakJdk::reused);
    cases.put("parallel", SpeakJdk::parallel);
    cases.put("large", SpeakJdk::large);
    cases.put("expecting", SpeakJdk::expecting);
    cases.put("older", SpeakJdk::older);
    cases.put("tools", url -> ask(chat(url, String.format(PLAIN, MODEL, TOOLS))));
    return cases;
  }

  static final Map<String, Integer> REFUSED = Map.of("tools", 400);

  static String quoted(String text) {
    String cut = text.length() > 300 ? text.substring(0, 300) : text;
    return '"' + cut.replace("\\", "\\\\").replace("\"", "\\\"").replaceAll("\\p{Cntrl}", " ") + '"';
  }

  public static void main(String[] arguments) {
    System.out.println("{\"versions\": {\"java\": " + quoted(System.getProperty("java.version")) + "}}");
    cases().forEach(
        (name, run) -> {
          long began = System.nanoTime();
          boolean ok = !REFUSED.containsKey(name);
          String detail;
          try {
            detail = String.valueOf(run.run(URL.replace("{case}", name)));
          } catch (Exception error) {
            ok = error instanceof Refused refused && REFUSED.getOrDefault(name, 0) == refused.status;
            detail = error.toString();
          }
          double seconds = Math.round((System.nanoTime() - began) / 1e7) / 100.0;
          System.out.printf(
              "{\"case\": %s, \"ok\": %b, \"seconds\": %s, \"detail\": %s}%n",
              quoted(name), ok, seconds, quoted(detail));
        });
  }
}
