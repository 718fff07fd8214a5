"""Names of the OpenAPI description's operations, from which generators make the functions of a client.

An operation has the name of its handler, or a name of OPERATIONS where the handler's name lacks the verb or the object:
`ListTenants` of `list_tenants`. Below /v1/admin it begins with `Admin`, because tenants and operators both list batches
and files; below /t/{tenant} it ends with `ForTenant`. No part is made from the path, which has parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

from litestar.enums import HttpMethod
from litestar.handlers import HTTPRouteHandler
from litestar.types import Method
from litestar.types.internal_types import PathParameterDefinition

OPERATIONS = {
    "POST /v1/chat/completions": "CreateChatCompletion",
    "POST /v1/completions": "CreateCompletion",
    "POST /v1/embeddings": "CreateEmbeddings",
    "POST /v1/messages": "CreateMessage",
    "POST /v1/responses": "CreateResponse",
    "POST /v1/responses/compact": "CompactConversation",
    "POST /v1/responses/input_tokens": "CountInputTokens",
    "GET /v1/conversations/{conversation}/items": "ListConversationItems",
    "POST /v1/conversations/{conversation}/items": "AddConversationItems",
    "GET /v1/conversations/{conversation}/items/{item}": "GetConversationItem",
    "DELETE /v1/conversations/{conversation}/items/{item}": "DeleteConversationItem",
    "GET /v1/usage": "GetUsage",
    "GET /v1/budget": "ListBudgets",
    "GET /health": "GetHealth",
    "GET /health/live": "GetLiveness",
    "GET /health/ready": "GetReadiness",
    "GET /metrics": "GetMetrics",
    "GET /version": "GetVersion",
    "GET /v1/organization/costs": "GetOrganizationCosts",
    "GET /v1/organization/usage/completions": "GetOrganizationUsage",
    "GET /v1/admin/adapters/uploads": "ListAdapterUploads",
    "GET /v1/admin/adapters/{adapter}/use": "GetAdapterUse",
    "GET /v1/admin/adapters/{adapter}/versions": "ListAdapterVersions",
    "GET /v1/admin/alias_use/{alias}": "GetAliasUse",
    "GET /v1/admin/audit": "GetAuditFindings",
    "GET /v1/admin/billing_profiles": "ListBillingProfiles",
    "GET /v1/admin/budgets/{budget_id}/end_users": "ListEndUserBudgets",
    "GET /v1/admin/engine": "GetEngineStatus",
    "GET /v1/admin/engine/live": "StreamEngine",
    "GET /v1/admin/exports/{export_id}/file": "DownloadExport",
    "GET /v1/admin/exports/{export_id}/manifest": "DownloadExportManifest",
    "GET /v1/admin/health": "GetHealth",
    "GET /v1/admin/limits/defaults": "GetDefaultLimits",
    "GET /v1/admin/margins": "GetMargins",
    "GET /v1/admin/overview": "GetOverview",
    "GET /v1/admin/periods/closable": "ListClosablePeriods",
    "POST /v1/admin/periods/close_all": "CloseMonth",
    "GET /v1/admin/reconciliations/standing": "GetOpenImbalances",
    "POST /v1/admin/reconciliations": "ReconcileBooks",
    "GET /v1/admin/session/options": "GetSignInOptions",
    "POST /v1/admin/session/backchannel_logout": "EndProviderSessions",
    "POST /v1/admin/session/totp": "EnrolTotp",
    "POST /v1/admin/session/totp/confirm": "ConfirmTotp",
    "POST /v1/admin/session/totp/remove": "RemoveTotp",
    "GET /v1/admin/sla": "GetSlaReport",
    "GET /v1/admin/sla/export": "ExportSlaReport",
    "GET /v1/admin/tenants/{tenant_id}/billing_profile": "GetBillingProfile",
    "PUT /v1/admin/tenants/{tenant_id}/billing_profile": "SetBillingProfile",
    "GET /v1/admin/usage": "GetUsage",
    "GET /v1/admin/usage/requests": "ListUsage",
}
_ADMIN, _TENANT = ["v1", "admin"], ["t", "tenant"]


def operation_id(handler: HTTPRouteHandler, method: Method, parts: Sequence[str | PathParameterDefinition]) -> str:
    """The name of a handler's operation on the path of `parts`."""
    words = [part if isinstance(part, str) else part.name for part in parts]
    below_tenant = words[:2] == _TENANT
    shown = [part if isinstance(part, str) else f"{{{part.name}}}" for part in parts]
    path = "/" + "/".join(shown[2:] if below_tenant else shown)
    name = OPERATIONS.get(f"{HttpMethod(method).value} {path}") or handler.handler_name.title().replace("_", "")
    return ("Admin" if words[:2] == _ADMIN else "") + name + ("ForTenant" if below_tenant else "")
