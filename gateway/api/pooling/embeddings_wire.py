"""The wire types of `/v1/embeddings`: request bodies and answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from gateway.api.completions_wire import PROMPT_IDS_MAX
from gateway.api.generation_request import EmbeddingFormat, GenerationRequest, Prompt
from gateway.api.parsing import BodyDecoder, Explanations, UnsupportedField
from gateway.api.sampling import MODEL_CHARS_MAX, NAMES_END_USER, TextRules, TokenId, make_sampling
from gateway.api.unknown_fields import UnknownFields
from gateway.errors import InvalidRequest

INPUTS_MAX = 2048  # OpenAI's limit
NUMBER_FORMAT = "%.9g"  # nine digits identify every float32
NUMBER_BYTES_MAX = len("-1.23456789e-38,")  # of a number in a list
FLOAT32_BYTES = 4
# Of the JSON of a vector without its numbers, and of the JSON around the vectors.
VECTOR_BYTES_MAX = 64
FRAME_BYTES_MAX = 1024

ModelName = Annotated[str, Meta(min_length=1, max_length=MODEL_CHARS_MAX)]
InputText = Annotated[str, Meta(min_length=1)]
InputIds = Annotated[list[TokenId], Meta(min_length=1, max_length=PROMPT_IDS_MAX)]


class EmbeddingsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One vector is made of each input."""

    model: ModelName
    input: Annotated[
        InputText | Annotated[list[InputText | TokenId | InputIds], Meta(min_length=1)],
        Meta(description=f"A text, a list of texts, a list of ids, or a list of lists of ids; at most {INPUTS_MAX}"),
    ]
    encoding_format: (
        Annotated[
            Literal["float", "base64"],
            Meta(description="A list of numbers, or base64 of little-endian float32; by default float"),
        ]
        | None
    ) = None
    dimensions: (
        Annotated[int, Meta(ge=1, description="Numbers of each vector, normalised again; by default all")] | None
    ) = None
    service_tier: str | None = None
    user: str | None = None  # in HINTS
    # In UNSUPPORTED_FIELDS.
    add_special_tokens: Any = None
    embed_dtype: Any = None
    endianness: Any = None
    normalize: Any = None
    priority: Any = None
    truncate_prompt_tokens: Any = None

    def prompts(self) -> list[Prompt]:
        """The inputs as a list. Raises InvalidRequest for too long a list, or a list of texts, ids and lists mixed."""
        given = self.input
        if isinstance(given, str):
            return [given]
        kinds = set(map(type, given))
        if len(kinds) > 1:
            raise InvalidRequest("'input' mixes texts, ids and lists of ids.", param="input")
        if kinds == {int}:
            if len(given) > PROMPT_IDS_MAX:
                raise InvalidRequest(f"'input' has over {PROMPT_IDS_MAX} ids.", param="input")
            return [cast("list[int]", given)]
        if len(given) > INPUTS_MAX:
            raise InvalidRequest(f"'input' has {len(given)} inputs; the limit is {INPUTS_MAX}.", param="input")
        return cast("list[Prompt]", given)

    def generation_request(self) -> GenerationRequest:
        return pooled_request(
            self.model,
            self.prompts(),
            "input",
            EmbeddingFormat(self.dimensions, base64=self.encoding_format == "base64", shows_vectors=True),
            service_tier=self.service_tier,
            user=self.user,
        )


def pooled_request(
    model: str,
    prompts: list[Prompt],
    param: str,
    embedding: EmbeddingFormat,
    *,
    service_tier: str | None,
    user: str | None,
) -> GenerationRequest:
    """A request for one vector of each prompt. `param`: the field that has the prompts."""
    return GenerationRequest(
        model=model,
        prompts=prompts,
        param=param,
        n=1,
        max_tokens=0,
        sampling=make_sampling(temperature=0.0, top_p=None, top_k=None, seed=0),
        rules=TextRules(stops=[], stop_ids=[]),
        service_tier=service_tier,
        stream=False,
        sticky=user,
        end_user=user or None,
        embedding=embedding,
    )


HINTS = {"user": NAMES_END_USER}

# Fields of vLLM's endpoint.
UNSUPPORTED_FIELDS: dict[str, UnsupportedField] = {
    "add_special_tokens": UnsupportedField("Special tokens are added before an input that is a text", (True,)),
    "embed_dtype": UnsupportedField("Vectors are float32", ("float32",)),
    "endianness": UnsupportedField("Base64 is of little-endian numbers", ("native", "little")),
    "normalize": UnsupportedField("Vectors have length 1", (True,)),
    "priority": UnsupportedField("Requests are ordered by service tier; use 'service_tier'", (0,)),
    "truncate_prompt_tokens": UnsupportedField("Inputs are not truncated"),
}

EXPLANATIONS: Explanations = (("'encoding_format' is wrong", "It is 'float' or 'base64'"),)

_decoder = BodyDecoder(EmbeddingsRequest, EXPLANATIONS)


def parse_embeddings(body: bytes, unknown: UnknownFields) -> EmbeddingsRequest:
    """Decode and check a JSON body. Raises InvalidRequest that names the field."""
    request = _decoder.decode_served(body, unknown, UNSUPPORTED_FIELDS)
    request.prompts()
    return request


# ---- answers ---------------------------------------------------------------------------------------------------


class EmbeddingUsage(msgspec.Struct, frozen=True, kw_only=True):
    """All tokens are of the inputs."""

    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """The vector of input `index`, of length 1: numbers, or base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """In the order of the inputs."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
