"""Examples of the answers to a tenant's key: generation, embeddings, stored responses, files and batches."""

from __future__ import annotations

from typing import Any

from gateway.routes.automation.examples.ids import BATCH, FILE, MADE_AT, MODEL, OUTPUT_FILE, with_prefix

_TEXT = "Rhine, Danube, Elbe"
_RESPONSE_ID, _CONVERSATION = with_prefix("resp"), with_prefix("conv")
_MESSAGE_BATCH = with_prefix("msgbatch")
_ITEM: dict[str, Any] = {
    "id": with_prefix("msg"),
    "type": "message",
    "status": "completed",
    "role": "user",
    "content": [{"type": "input_text", "text": "Name three rivers."}],
}
_OPENAI_USAGE: dict[str, Any] = {
    "prompt_tokens": 34,
    "completion_tokens": 4,
    "total_tokens": 38,
    "prompt_tokens_details": {"cached_tokens": 32, "audio_tokens": 0},
    "completion_tokens_details": {
        "reasoning_tokens": 0,
        "audio_tokens": 0,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    },
}
_GENERATED: dict[str, Any] = {
    "created": MADE_AT,
    "model": MODEL,
    "service_tier": "default",
    "system_fingerprint": "fp_0123456789ab",
    "usage": _OPENAI_USAGE,
}
_RESPONSE_USAGE: dict[str, Any] = {
    "input_tokens": 34,
    "input_tokens_details": {"cached_tokens": 32, "cache_write_tokens": 0},
    "output_tokens": 16,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 50,
}
_MESSAGE: dict[str, Any] = {"role": "assistant", "content": _TEXT, "refusal": None, "annotations": []}
_EMBEDDING_USAGE = {"prompt_tokens": 5, "total_tokens": 5}

ANSWERS: dict[str, Any] = {
    "BatchObject": {
        "id": BATCH,
        "object": "batch",
        "endpoint": "/v1/chat/completions",
        "errors": None,
        "input_file_id": FILE,
        "completion_window": "24h",
        "status": "completed",
        "output_file_id": OUTPUT_FILE,
        "error_file_id": None,
        "created_at": MADE_AT,
        "in_progress_at": MADE_AT + 1,
        "expires_at": MADE_AT + 86_400,
        "finalizing_at": MADE_AT + 40,
        "completed_at": MADE_AT + 41,
        "failed_at": None,
        "expired_at": None,
        "cancelling_at": None,
        "cancelled_at": None,
        "request_counts": {"total": 100, "completed": 100, "failed": 0},
        "usage": {
            "input_tokens": 3_400,
            "input_tokens_details": {"cached_tokens": 3_200},
            "output_tokens": 400,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 3_800,
        },
        "metadata": None,
    },
    "ChatCompletion": {
        "id": with_prefix("chatcmpl").replace("_", "-"),
        "object": "chat.completion",
        **_GENERATED,
        "choices": [{"index": 0, "message": _MESSAGE, "logprobs": None, "finish_reason": "length"}],
    },
    "CompactedResponse": {
        "id": _RESPONSE_ID,
        "object": "response.compaction",
        "created_at": MADE_AT + 0.5,
        "output": [_ITEM, {"id": with_prefix("cmp"), "type": "compaction", "encrypted_content": "…"}],
        "usage": _RESPONSE_USAGE,
    },
    "Completion": {
        "id": with_prefix("cmpl").replace("_", "-"),
        "object": "text_completion",
        **_GENERATED,
        "choices": [{"index": 0, "text": f" {_TEXT}", "logprobs": None, "finish_reason": "length"}],
    },
    "ConversationObject": {
        "id": _CONVERSATION,
        "object": "conversation",
        "created_at": MADE_AT,
        "metadata": {"topic": "rivers"},
    },
    "DeletedConversation": {"id": _CONVERSATION, "object": "conversation.deleted", "deleted": True},
    "DeletedFile": {"id": FILE, "object": "file", "deleted": True},
    "DeletedMessageBatch": {"id": _MESSAGE_BATCH, "type": "message_batch_deleted"},
    "DeletedResponse": {"id": _RESPONSE_ID, "object": "response", "deleted": True},
    "DetokenizeAnswer": {"prompt": "Three rivers are"},
    "Embedding": {"object": "embedding", "index": 0, "embedding": [0.0132, -0.0281, 0.0442]},
    "FileObject": {
        "id": FILE,
        "object": "file",
        "bytes": 20_480,
        "created_at": MADE_AT,
        "expires_at": None,
        "filename": "requests.jsonl",
        "purpose": "batch",
        "status": "processed",
    },
    "GetConversationItem": _ITEM,
    "InputTokens": {"object": "response.input_tokens", "input_tokens": 34},
    "MessageAnswer": {
        "type": "message",
        "id": with_prefix("msg"),
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": _TEXT}],
        "stop_reason": "max_tokens",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 2,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 32,
            "output_tokens": 4,
            "service_tier": "standard",
        },
    },
    "MessageBatchObject": {
        "id": _MESSAGE_BATCH,
        "type": "message_batch",
        "processing_status": "ended",
        "request_counts": {"processing": 0, "succeeded": 1, "errored": 0, "canceled": 0, "expired": 0},
        "created_at": "2026-01-01T00:00:00Z",
        "expires_at": "2026-01-02T00:00:00Z",
        "ended_at": "2026-01-01T00:00:41Z",
        "archived_at": None,
        "cancel_initiated_at": None,
        "results_url": f"/v1/messages/batches/{_MESSAGE_BATCH}/results",
    },
    "ModelCard": {
        "id": MODEL,
        "object": "model",
        "created": MADE_AT,
        "owned_by": "laneway",
        "parent": None,
        "capabilities": {"tools": False, "reasoning": False, "structured_outputs": True},
        "max_model_len": 8192,
    },
    "RerankAnswer": {
        "id": with_prefix("rerank").replace("_", "-"),
        "model": MODEL,
        "results": [{"index": 0, "document": {"text": "The Rhine"}, "relevance_score": 0.83}],
        "usage": _EMBEDDING_USAGE,
    },
    "ResponseObject": {
        "id": _RESPONSE_ID,
        "object": "response",
        "created_at": MADE_AT + 0.5,
        "status": "incomplete",
        "completed_at": MADE_AT + 0.5,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"},
        "model": MODEL,
        "output": [
            {
                "id": f"{with_prefix('msg')}_0",
                "type": "message",
                "status": "incomplete",
                "role": "assistant",
                "content": [{"type": "output_text", "text": _TEXT, "annotations": [], "logprobs": []}],
            }
        ],
        "service_tier": "default",
        "usage": _RESPONSE_USAGE,
        "background": False,
        "conversation": None,
        "instructions": None,
        "max_output_tokens": 16,
        "max_tool_calls": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "user": None,
        "store": False,
    },
    "TextScore": {"object": "score", "index": 0, "score": 0.83},
    "TokenCount": {"input_tokens": 34},
    "TokenizeAnswer": {"count": 3, "max_model_len": 8192, "tokens": [16705, 7626, 359], "token_strs": None},
}
# Fields of a list beside its `data`, by the name of its component; `data` only where its elements have no component.
LISTS: dict[str, dict[str, Any]] = {
    "ConversationItemList": {"data": [_ITEM]},
    "EmbeddingList": {"model": MODEL, "usage": _EMBEDDING_USAGE},
    "InputItems": {"data": [_ITEM]},
    "ScoreAnswer": {
        "id": with_prefix("score").replace("_", "-"),
        "created": MADE_AT,
        "model": MODEL,
        "usage": _EMBEDDING_USAGE,
    },
}
