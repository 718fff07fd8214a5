// The npm package oidc-provider as a process of its own, with the means of a test: people and their groups, a new
// signing key, and ID tokens with wrong claims that its own key signs.
//
// node provider.mjs PORT CLIENT_ID CLIENT_SECRET PUBLIC_URL
import { createServer } from "node:http";
import { SignJWT, decodeJwt, exportJWK, generateKeyPair, importJWK } from "jose";
import Provider from "oidc-provider";

const [port, clientId, clientSecret, publicUrl] = process.argv.slice(2);
const issuer = `http://localhost:${port}`;
const people = new Map(); // subject → claims
const counts = { jwks: 0, token: 0, userinfo: 0 };
let wrong = null; // what to change in the next ID tokens: {claims, header, stranger}, or the whole answer: {token}
let lastLogout = ""; // the form of the last logout that was sent
let lastTokens = {};
let keyNumber = 0;
let key = null;
let provider = null;

async function newKey() {
  const pair = await generateKeyPair("RS256", { extractable: true });
  return { ...(await exportJWK(pair.privateKey)), alg: "RS256", use: "sig", kid: `key-${++keyNumber}` };
}

async function tampered(idToken) {
  const signer = wrong.stranger ? await newKey() : key;
  const claims = { ...decodeJwt(idToken), ...wrong.claims };
  const header = { alg: "RS256", kid: signer.kid, ...wrong.header };
  if (header.alg === "none") {
    const part = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");
    return `${part(header)}.${part(claims)}.`;
  }
  return new SignJWT(claims).setProtectedHeader(header).sign(await importJWK(signer, "RS256"));
}

function made() {
  const one = new Provider(issuer, {
    jwks: { keys: [key] },
    clients: [
      {
        client_id: clientId,
        client_secret: clientSecret,
        redirect_uris: [`${publicUrl}/v1/admin/session/callback`],
        backchannel_logout_uri: `${publicUrl}/v1/admin/session/backchannel_logout`,
        backchannel_logout_session_required: true,
      },
    ],
    fetch: (url, options) => {
      lastLogout = String(options.body);
      return globalThis.fetch(url, { ...options, dispatcher: undefined }); // which refuses loopback addresses
    },
    cookies: { keys: ["for tests"] },
    claims: { openid: ["sub"], profile: ["name"], email: ["email"], groups: ["groups"] },
    scopes: ["openid", "profile", "email", "groups"],
    features: { backchannelLogout: { enabled: true }, devInteractions: { enabled: true } },
    findAccount: (_, sub) => ({ accountId: sub, claims: () => ({ sub, ...people.get(sub) }) }),
    // Every scope is granted without a question.
    async loadExistingGrant(ctx) {
      const grant = new ctx.oidc.provider.Grant({ clientId, accountId: ctx.oidc.session.accountId });
      grant.addOIDCScope("openid profile email groups");
      await grant.save();
      return grant;
    },
  });
  one.use(async (ctx, next) => {
    await next();
    const name = ctx.path.slice(1) === "me" ? "userinfo" : ctx.path.slice(1);
    if (name in counts) counts[name] += 1;
    if (ctx.path === "/token") lastTokens = { ...ctx.body };
    if (wrong !== null && ctx.path === "/token" && ctx.body?.id_token) {
      ctx.body = wrong.token ?? { ...ctx.body, id_token: await tampered(ctx.body.id_token) };
    }
  });
  return one;
}

// ---- what a test asks for: POST /test/WORD with a JSON body
const WORDS = {
  person: ({ sub, ...claims }) => void people.set(sub, claims),
  wrong: (what) => void (wrong = Object.keys(what).length ? what : null),
  seen: () => ({ counts, lastLogout, lastTokens }),
  async rotate() {
    key = await newKey();
    provider = made();
  },
  async logout({ sub, sid }) {
    const client = await provider.Client.find(clientId);
    await client.backchannelLogout(sub, sid);
  },
};

async function control(request, response, word) {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  try {
    const answer = await WORDS[word](JSON.parse(Buffer.concat(chunks).toString() || "{}"));
    response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(answer ?? {}));
  } catch (error) {
    response.writeHead(500).end(`${error} ${error.cause}`);
  }
}

key = await newKey();
provider = made();
createServer((request, response) => {
  const word = request.url.match(/^\/test\/(\w+)$/)?.[1];
  if (word in WORDS) void control(request, response, word);
  else provider.callback()(request, response);
}).listen(Number(port), () => console.log("ready"));
