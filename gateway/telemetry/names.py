"""Names of attributes, spans and metrics. The names of OpenTelemetry's semantic conventions are here and nowhere else:
the GenAI conventions are in development, and rename attributes. The versions are HTTP 1.41 and GenAI 0.1.
"""

from __future__ import annotations

# ---- resource
SERVICE_NAME = "service.name"
SERVICE_VERSION = "service.version"
SERVICE_INSTANCE_ID = "service.instance.id"

# ---- HTTP
HTTP_REQUEST_METHOD = "http.request.method"
HTTP_RESPONSE_STATUS_CODE = "http.response.status_code"
HTTP_ROUTE = "http.route"
ERROR_TYPE = "error.type"

# ---- GenAI
OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CHAT, TEXT_COMPLETION, EMBEDDINGS = "chat", "text_completion", "embeddings"
PROVIDER = "laneway"

# ---- Laneway's own
REQUEST_ID = "laneway.request_id"
TENANT_ID = "laneway.tenant.id"
KEY_ID = "laneway.key.id"
TIER = "laneway.tier"
ADAPTER_ID = "laneway.adapter.id"
ENDING = "laneway.ending"
COST_PICOS = "laneway.cost_picos"
DISCARDED_TOKENS = "laneway.discarded_tokens"
STREAM = "laneway.stream"
GUIDED = "laneway.guided"
FALLBACKS = "laneway.fallbacks"
REPLAY_OF = "laneway.replay_of"
TEXT_INDEX = "laneway.text"
TEXTS = "laneway.texts"
ENGINE_EPOCHS = "laneway.engine.epochs"
DEVICE_S = "laneway.device_s"
PREEMPTIONS = "laneway.preemptions"
RECOMPUTED_TOKENS = "laneway.recomputed_tokens"
HOLD_SPAN, SETTLE_SPAN = "hold", "settle"
QUEUE_SPAN, PREFILL_SPAN, DECODE_SPAN = "queue", "prefill", "decode"

# ---- metrics, as Prometheus spells them: dots as underscores, and the unit at the end
OPERATION_DURATION = "gen_ai_client_operation_duration_seconds"
TOKEN_USAGE = "gen_ai_client_token_usage"
TIME_TO_FIRST_TOKEN = "gen_ai_server_time_to_first_token_seconds"
TIME_PER_OUTPUT_TOKEN = "gen_ai_server_time_per_output_token_seconds"
LABEL_OPERATION = "gen_ai_operation_name"
LABEL_PROVIDER = "gen_ai_provider_name"
LABEL_MODEL = "gen_ai_request_model"
LABEL_TOKEN_TYPE = "gen_ai_token_type"
