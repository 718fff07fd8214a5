// Generated from the gateway's OpenAPI by `npm run types`; not edited by hand.
export interface paths {
    "/v1/chat/completions": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** ChatCompletions */
        post: operations["V1ChatCompletionsChatCompletions"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/chat/completions": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** ChatCompletions */
        post: operations["TTenantV1ChatCompletionsChatCompletions"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/completions": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Completions */
        post: operations["TTenantV1CompletionsCompletions"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/completions": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Completions */
        post: operations["V1CompletionsCompletions"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/messages": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Messages */
        post: operations["TTenantV1MessagesMessages"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/messages": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Messages */
        post: operations["V1MessagesMessages"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/messages/count_tokens": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** CountTokens */
        post: operations["V1MessagesCountTokensCountTokens"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/messages/count_tokens": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** CountTokens */
        post: operations["TTenantV1MessagesCountTokensCountTokens"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/models": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** ListModels */
        get: operations["TTenantV1ModelsListModels"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/models": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** ListModels */
        get: operations["V1ModelsListModels"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/models/{model}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** GetModel */
        get: operations["V1ModelsGetModel"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/models/{model}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** GetModel */
        get: operations["TTenantV1ModelsGetModel"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/usage": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** OwnUsage */
        get: operations["TTenantV1UsageOwnUsage"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/usage": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** OwnUsage */
        get: operations["V1UsageOwnUsage"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/budget": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** OwnBudgets */
        get: operations["TTenantV1BudgetOwnBudgets"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/budget": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** OwnBudgets */
        get: operations["V1BudgetOwnBudgets"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/health/live": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Live */
        get: operations["HealthLiveLive"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/health/ready": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Ready */
        get: operations["HealthReadyReady"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/metrics": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Metrics */
        get: operations["MetricsMetrics"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/tenants/{tenant_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** GetTenant */
        get: operations["V1AdminTenantsTenantIdGetTenant"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        /** ChangeTenant */
        patch: operations["V1AdminTenantsTenantIdChangeTenant"];
        trace?: never;
    };
    "/v1/admin/tenants": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** ListTenants */
        get: operations["V1AdminTenantsListTenants"];
        put?: never;
        /** CreateTenant */
        post: operations["V1AdminTenantsCreateTenant"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/projects/{project_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        /** ChangeProject */
        patch: operations["V1AdminProjectsProjectIdChangeProject"];
        trace?: never;
    };
    "/v1/admin/projects": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** ListProjects */
        get: operations["V1AdminProjectsListProjects"];
        put?: never;
        /** CreateProject */
        post: operations["V1AdminProjectsCreateProject"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/keys/{key_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** GetKey */
        get: operations["V1AdminKeysKeyIdGetKey"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        /** ChangeKey */
        patch: operations["V1AdminKeysKeyIdChangeKey"];
        trace?: never;
    };
    "/v1/admin/keys": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** ListKeys */
        get: operations["V1AdminKeysListKeys"];
        put?: never;
        /** CreateKey */
        post: operations["V1AdminKeysCreateKey"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/keys/{key_id}/revoke": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** RevokeKey */
        post: operations["V1AdminKeysKeyIdRevokeRevokeKey"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/keys/{key_id}/rotate": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** RotateKey */
        post: operations["V1AdminKeysKeyIdRotateRotateKey"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/prices": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** ListPrices */
        get: operations["V1AdminPricesListPrices"];
        put?: never;
        /** PublishPrice */
        post: operations["V1AdminPricesPublishPrice"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/prices/preview": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** PreviewPrice */
        post: operations["V1AdminPricesPreviewPreviewPrice"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/budgets": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** ListBudgets */
        get: operations["V1AdminBudgetsListBudgets"];
        put?: never;
        /** SetBudget */
        post: operations["V1AdminBudgetsSetBudget"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/budgets/{budget_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /** RemoveBudget */
        delete: operations["V1AdminBudgetsBudgetIdRemoveBudget"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/webhooks": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** ListWebhooks */
        get: operations["V1AdminWebhooksListWebhooks"];
        put?: never;
        /** CreateWebhook */
        post: operations["V1AdminWebhooksCreateWebhook"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/webhooks/{webhook_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /** RemoveWebhook */
        delete: operations["V1AdminWebhooksWebhookIdRemoveWebhook"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/alerts": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** ListAlerts */
        get: operations["V1AdminAlertsListAlerts"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/exports": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** ListExports */
        get: operations["V1AdminExportsListExports"];
        put?: never;
        /** CreateExport */
        post: operations["V1AdminExportsCreateExport"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/exports/{export_id}/file": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Download */
        get: operations["V1AdminExportsExportIdFileDownload"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/exports/{export_id}/manifest": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** DownloadManifest */
        get: operations["V1AdminExportsExportIdManifestDownloadManifest"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/exports/{export_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** GetExport */
        get: operations["V1AdminExportsExportIdGetExport"];
        put?: never;
        post?: never;
        /** EndExport */
        delete: operations["V1AdminExportsExportIdEndExport"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/limits": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** ListLimits */
        get: operations["V1AdminLimitsListLimits"];
        put?: never;
        /** SetLimits */
        post: operations["V1AdminLimitsSetLimits"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/limits/{limits_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /** RemoveLimits */
        delete: operations["V1AdminLimitsLimitsIdRemoveLimits"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/adapters/{adapter}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** GetAdapter */
        get: operations["V1AdminAdaptersGetAdapter"];
        put?: never;
        post?: never;
        /** RemoveAdapter */
        delete: operations["V1AdminAdaptersRemoveAdapter"];
        options?: never;
        head?: never;
        /** ChangeAdapter */
        patch: operations["V1AdminAdaptersChangeAdapter"];
        trace?: never;
    };
    "/v1/admin/adapters/check": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** CheckAdapter */
        post: operations["V1AdminAdaptersCheckCheckAdapter"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/adapters": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** ListAdapters */
        get: operations["V1AdminAdaptersListAdapters"];
        put?: never;
        /** UploadAdapter */
        post: operations["V1AdminAdaptersUploadAdapter"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/adapters/uploads": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** ListUploads */
        get: operations["V1AdminAdaptersUploadsListUploads"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/adapters/{adapter}/versions": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** ListVersions */
        get: operations["V1AdminAdaptersVersionsListVersions"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/adapters/{adapter}/promote": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** PromoteAdapter */
        post: operations["V1AdminAdaptersPromotePromoteAdapter"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/adapters/{adapter}/versions/{version}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /** RemoveAdapterVersion */
        delete: operations["V1AdminAdaptersVersionsRemoveAdapterVersion"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/adapters/{adapter}/rollback": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** RollBackAdapter */
        post: operations["V1AdminAdaptersRollbackRollBackAdapter"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/usage": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** UsageTotals */
        get: operations["V1AdminUsageUsageTotals"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/usage/requests": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** UsageRequests */
        get: operations["V1AdminUsageRequestsUsageRequests"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/audit": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** AuditFindings */
        get: operations["V1AdminAuditAuditFindings"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/audit_log": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** ListAuditLog */
        get: operations["V1AdminAuditLogListAuditLog"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/engine": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** EngineStatus */
        get: operations["V1AdminEngineEngineStatus"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/periods": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** ListPeriods */
        get: operations["V1AdminPeriodsListPeriods"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/periods/close": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** ClosePeriod */
        post: operations["V1AdminPeriodsCloseClosePeriod"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/invoices": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** ListInvoices */
        get: operations["V1AdminInvoicesListInvoices"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/invoices/{invoice_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** GetInvoice */
        get: operations["V1AdminInvoicesInvoiceIdGetInvoice"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/corrections": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** ListCorrections */
        get: operations["V1AdminCorrectionsListCorrections"];
        put?: never;
        /** MakeCorrection */
        post: operations["V1AdminCorrectionsMakeCorrection"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/margins": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** TierMargins */
        get: operations["V1AdminMarginsTierMargins"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/reconciliations": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** ListReconciliations */
        get: operations["V1AdminReconciliationsListReconciliations"];
        put?: never;
        /** ReconcileNow */
        post: operations["V1AdminReconciliationsReconcileNow"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/reconciliations/standing": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** ReconciliationStanding */
        get: operations["V1AdminReconciliationsStandingReconciliationStanding"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/organization/usage/completions": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** OrganizationUsage */
        get: operations["V1OrganizationUsageCompletionsOrganizationUsage"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/organization/costs": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** OrganizationCosts */
        get: operations["V1OrganizationCostsOrganizationCosts"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/session": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** GetSession */
        get: operations["V1AdminSessionGetSession"];
        put?: never;
        /** SignIn */
        post: operations["V1AdminSessionSignIn"];
        /** SignOut */
        delete: operations["V1AdminSessionSignOut"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
}
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /** Adapter */
        Adapter: {
            id: string;
            tenant_id: string | null;
            name: string;
            base_model: string;
            digest: string;
            version: number;
            active: boolean;
            shared: string[];
            pinned: boolean;
            notes: string | null;
            created_at: number;
        };
        /** AdapterChange */
        AdapterChange: {
            shared?: string[] | null;
            pinned?: boolean | null;
            notes?: string | null;
        };
        /** AddedAdapterView */
        AddedAdapterView: {
            id: string;
            tenant_id: string | null;
            name: string;
            base_model: string;
            digest: string;
            version: number;
            active: boolean;
            shared: string[];
            pinned: boolean;
            notes: string | null;
            created_at: number;
            added: components["schemas"]["Version"];
        };
        /** Amount */
        Amount: {
            value: number;
            currency: string;
            picos: number | bigint;
        };
        /** AuditLineView */
        AuditLineView: {
            id: number;
            at: number;
            actor: string;
            action: string;
            object_id: string;
            tenant_id: string | null;
            request_id: string | null;
            before: unknown;
            after: unknown;
        };
        /** AuditView */
        AuditView: {
            sound: boolean;
            findings: components["schemas"]["Findings"];
        };
        /** BudgetSetting */
        BudgetSetting: {
            tenant: string;
            /** @enum {string} */
            unit: "tokens" | "money";
            /** @enum {string} */
            period: "day" | "month" | "total";
            limit_amount: number | bigint;
            project?: string | null;
            key_id?: string | null;
            /** @enum {null|string} */
            kind?: "hard" | "soft" | null;
            thresholds?: number[] | null;
        };
        /** BudgetView */
        BudgetView: {
            id: string;
            tenant_id: string;
            /** @enum {string} */
            scope: "tenant" | "project" | "key";
            scope_id: string;
            /** @enum {string} */
            unit: "tokens" | "money";
            /** @enum {string} */
            period: "day" | "month" | "total";
            /** @enum {string} */
            kind: "hard" | "soft";
            thresholds: number[];
            limit_amount: number | bigint;
            used: number | bigint;
            held: number | bigint;
            left: number | bigint;
            resets_at: number | null;
            created_at: number;
        };
        /** CorrectionView */
        CorrectionView: {
            id: string;
            period_id: string;
            tenant_id: string;
            project_id: string | null;
            key_id: string | null;
            request_id: string | null;
            model: string | null;
            adapter: string | null;
            tier: string | null;
            meter: string | null;
            currency: string;
            tokens: number;
            picos: number | bigint;
            reason: string;
            actor: string;
            created_at: number;
        };
        /** CostBucket */
        CostBucket: {
            /**
             * @default bucket
             * @constant
             */
            object: "bucket";
            start_time: number;
            end_time: number;
            results: components["schemas"]["CostResult"][];
        };
        /** CostPage */
        CostPage: {
            /**
             * @default page
             * @constant
             */
            object: "page";
            data: components["schemas"]["CostBucket"][];
            has_more: boolean;
            next_page: string | null;
        };
        /** CostResult */
        CostResult: {
            /**
             * @default organization.costs.result
             * @constant
             */
            object: "organization.costs.result";
            amount: components["schemas"]["Amount"];
            line_item?: null;
            correction_picos: number | bigint;
            project_id?: string | null;
            api_key_id?: string | null;
            model?: string | null;
            service_tier?: string | null;
            tenant_id?: string | null;
            adapter?: string | null;
            tier?: string | null;
        };
        /** DeliveryView */
        DeliveryView: {
            webhook_id: string;
            /** @enum {string} */
            state: "pending" | "delivered" | "failed";
            attempts: number;
            next_attempt_at: number | null;
            delivered_at: number | null;
            last_error: string | null;
        };
        /** EngineView */
        EngineView: {
            epoch: string;
            step: number;
            running: number;
            waiting: {
                [key: string]: number;
            };
            pages_total: number;
            pages_free: number;
            pages_cached: number;
            pages_adapters: number;
            adapters_resident: string[];
            tokens_made: number;
            tokens_overrun: number;
            tokens_lost: number;
        };
        /** ExportView */
        ExportView: {
            id: string;
            tenant_id: string | null;
            month: string;
            /** @enum {string} */
            kind: "focus" | "events";
            /** @enum {string} */
            format: "csv" | "parquet" | "jsonl";
            /** @enum {string} */
            state: "queued" | "running" | "done" | "failed" | "cancelled" | "removed";
            progress: number;
            rows: number;
            attempts: number;
            host: string | null;
            file: string | null;
            size_bytes: number | null;
            sha256: string | null;
            error: string | null;
            actor: string;
            created_at: number;
            started_at: number | null;
            finished_at: number | null;
        };
        /** Facts */
        Facts: {
            digest: string;
            bytes?: number | null;
            rank_max?: number | null;
            parameters?: number | null;
            /** @default [] */
            targets: string[];
            trained_for?: string | null;
            /** @default [] */
            warnings: string[];
        };
        /** Findings */
        Findings: {
            unbalanced: string[];
            cost_difference_picos: number | bigint;
            wrong_counters: string[];
            overshot: string[];
            oversettled: string[];
            unrecorded: string[];
            orphaned: string[];
            open_holds: number;
        };
        /** Health */
        Health: {
            ready: boolean;
            problems: {
                [key: string]: string;
            };
        };
        /** Imbalance */
        Imbalance: {
            what: string;
            where: string;
            expected: number;
            found: number;
        };
        /** InvoiceView */
        InvoiceView: {
            id: string;
            tenant_id: string;
            period: components["schemas"]["PeriodView"];
            currency: string;
            usage_picos: number | bigint;
            correction_picos: number | bigint;
            total_picos: number | bigint;
            issued_at: number;
        };
        /** Key */
        Key: {
            id: string;
            tenant_id: string | null;
            project_id: string | null;
            name: string;
            kind: string;
            prefix: string;
            last4: string;
            tier: string | null;
            scopes: string[];
            default_max_tokens: number | null;
            created_at: number;
            last_used_at: number | null;
            expires_at: number | null;
            revoked_at: number | null;
            rotated_to: string | null;
            /** @enum {null|string} */
            role: "owner" | "operator" | "finance" | "tenant_admin" | "read_only" | null;
        };
        /** KeyChange */
        KeyChange: {
            project?: string | null;
            default_max_tokens?: number | null;
        };
        /** LimitsSetting */
        LimitsSetting: {
            tenant: string;
            key_id?: string | null;
            requests_per_minute?: number | null;
            tokens_per_minute?: number | null;
            concurrency?: number | null;
        };
        /** LineView */
        LineView: {
            line: number;
            /** @enum {string} */
            kind: "usage" | "correction";
            model: string | null;
            adapter: string | null;
            adapter_name: string | null;
            tier: string | null;
            meter: string | null;
            price_version_id: string | null;
            unit_price_picos: number | null;
            tokens: number;
            picos: number | bigint;
            correction_id: string | null;
        };
        /** ListedAlertView */
        ListedAlertView: {
            id: string;
            tenant_id: string;
            budget_id: string;
            /** @enum {string} */
            scope: "tenant" | "project" | "key";
            scope_id: string;
            /** @enum {string} */
            unit: "tokens" | "money";
            /** @enum {string} */
            period: "day" | "month" | "total";
            /** @enum {string} */
            kind: "hard" | "soft";
            window_start: number;
            threshold: number;
            limit_amount: number | bigint;
            used: number | bigint;
            crossed_at: number;
            deliveries: components["schemas"]["DeliveryView"][];
        };
        /** Margins */
        Margins: {
            month: string;
            sequence: number;
            device_second_picos: number | bigint;
            tiers: components["schemas"]["TierMargin"][];
        };
        /** ModelCard */
        ModelCard: {
            id: string;
            /**
             * @default model
             * @constant
             */
            object: "model";
            created: number;
            owned_by: string;
            parent?: string | null;
        };
        /** ModelList */
        ModelList: {
            /**
             * @default list
             * @constant
             */
            object: "list";
            data: components["schemas"]["ModelCard"][];
        };
        /** NewCorrection */
        NewCorrection: {
            reason: string;
            request_id?: string | null;
            tokens?: number | null;
            tenant?: string | null;
            picos?: number | null;
            project?: string | null;
            key_id?: string | null;
            model?: string | null;
            adapter?: string | null;
            tier?: string | null;
            /** @enum {null|string} */
            meter?: "input" | "cached_input" | "output" | null;
        };
        /** NewExport */
        NewExport: {
            month: string;
            /**
             * @default focus
             * @enum {string}
             */
            kind: "focus" | "events";
            /**
             * @default csv
             * @enum {string}
             */
            format: "csv" | "parquet" | "jsonl";
            tenant?: string | null;
        };
        /** NewKey */
        NewKey: {
            tenant?: string | null;
            project?: string | null;
            /** @default api */
            name: string;
            /**
             * @default live
             * @enum {string}
             */
            kind: "live" | "test" | "admin";
            tier?: string | null;
            scopes?: string[] | null;
            expires_at?: number | null;
            default_max_tokens?: number | null;
            /** @enum {null|string} */
            role?: "owner" | "operator" | "finance" | "tenant_admin" | "read_only" | null;
        };
        /** NewKeyView */
        NewKeyView: {
            id: string;
            tenant_id: string | null;
            project_id: string | null;
            name: string;
            kind: string;
            prefix: string;
            last4: string;
            tier: string | null;
            scopes: string[];
            default_max_tokens: number | null;
            created_at: number;
            last_used_at: number | null;
            expires_at: number | null;
            revoked_at: number | null;
            rotated_to: string | null;
            /** @enum {null|string} */
            role: "owner" | "operator" | "finance" | "tenant_admin" | "read_only" | null;
            secret: string;
        };
        /** NewPrice */
        NewPrice: {
            subject: string;
            input: number;
            output: number;
            cached_input?: number | null;
            multipliers?: {
                [key: string]: string;
            };
            /**
             * @default model
             * @enum {string}
             */
            subject_kind: "model" | "adapter";
            /** @default USD */
            currency: string;
            effective_from?: number | null;
        };
        /** NewProject */
        NewProject: {
            tenant: string;
            name: string;
            default_max_tokens?: number | null;
        };
        /** NewTenant */
        NewTenant: {
            slug: string;
            tier: string;
            name?: string | null;
            /** @default USD */
            currency: string;
            default_max_tokens?: number | null;
            /** @default 1 */
            share_weight: number;
            /** @default UTC */
            time_zone: string;
        };
        /** NewWebhook */
        NewWebhook: {
            url: string;
            tenant?: string | null;
        };
        /** NewWebhookView */
        NewWebhookView: {
            id: string;
            tenant_id: string | null;
            url: string;
            created_at: number;
            secret: string;
        };
        /** OwnBudgets */
        OwnBudgets: {
            /**
             * @default list
             * @constant
             */
            object: "list";
            data: components["schemas"]["BudgetView"][];
        };
        /** OwnLimits */
        OwnLimits: {
            id: string;
            /** @enum {string} */
            scope: "key" | "tenant";
            subject_id: string;
            tenant_id: string;
            requests_per_minute: number | null;
            tokens_per_minute: number | null;
            concurrency: number | null;
        };
        /** OwnUsage */
        OwnUsage: {
            /**
             * @default usage
             * @constant
             */
            object: "usage";
            key_id: string;
            start_time: number | null;
            end_time: number | null;
            requests: number;
            prompt_tokens: number;
            cached_tokens: number;
            completion_tokens: number;
            device_s: number;
            preemptions: number;
            recomputed: {
                [key: string]: components["schemas"]["Recompute"];
            };
            swapped_tokens: number;
            cost_picos: {
                [key: string]: number | bigint;
            };
        };
        /** Page[Adapter] */
        "Page_gateway.adapter_rows.Adapter_": {
            data: components["schemas"]["Adapter"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[Version] */
        "Page_gateway.adapter_rows.Version_": {
            data: components["schemas"]["Version"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[OwnLimits] */
        "Page_gateway.allowances.OwnLimits_": {
            data: components["schemas"]["OwnLimits"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[CorrectionView] */
        "Page_gateway.finance_views.CorrectionView_": {
            data: components["schemas"]["CorrectionView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[InvoiceView] */
        "Page_gateway.finance_views.InvoiceView_": {
            data: components["schemas"]["InvoiceView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[PeriodView] */
        "Page_gateway.finance_views.PeriodView_": {
            data: components["schemas"]["PeriodView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[ReconciliationView] */
        "Page_gateway.finance_views.ReconciliationView_": {
            data: components["schemas"]["ReconciliationView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[Key] */
        "Page_gateway.keys.Key_": {
            data: components["schemas"]["Key"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[AuditLineView] */
        "Page_gateway.views.AuditLineView_": {
            data: components["schemas"]["AuditLineView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[BudgetView] */
        "Page_gateway.views.BudgetView_": {
            data: components["schemas"]["BudgetView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[ExportView] */
        "Page_gateway.views.ExportView_": {
            data: components["schemas"]["ExportView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[ListedAlertView] */
        "Page_gateway.views.ListedAlertView_": {
            data: components["schemas"]["ListedAlertView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[PriceView] */
        "Page_gateway.views.PriceView_": {
            data: components["schemas"]["PriceView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[ProjectView] */
        "Page_gateway.views.ProjectView_": {
            data: components["schemas"]["ProjectView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[TenantView] */
        "Page_gateway.views.TenantView_": {
            data: components["schemas"]["TenantView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[UsageView] */
        "Page_gateway.views.UsageView_": {
            data: components["schemas"]["UsageView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[WebhookView] */
        "Page_gateway.views.WebhookView_": {
            data: components["schemas"]["WebhookView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** PeriodClosing */
        PeriodClosing: {
            tenant: string;
            month: string;
        };
        /** PeriodView */
        PeriodView: {
            id: string;
            tenant_id: string;
            month: string;
            time_zone: string;
            start_at: number;
            end_at: number;
            /** @enum {string} */
            state: "open" | "closed";
            closed_at: number | null;
            closed_by: string | null;
            closed_sequence: number | null;
            sequence_min: number | null;
            sequence_max: number | null;
        };
        /** Preview */
        Preview: {
            month: string;
            currency: string;
            sequence: number;
            was_picos: number | bigint;
            would_picos: number | bigint;
            tenants: components["schemas"]["TenantPreview"][];
        };
        /** PricePreview */
        PricePreview: {
            subject: string;
            input: number;
            output: number;
            cached_input?: number | null;
            multipliers?: {
                [key: string]: string;
            };
            /**
             * @default model
             * @enum {string}
             */
            subject_kind: "model" | "adapter";
            /** @default USD */
            currency: string;
            effective_from?: number | null;
            month?: string | null;
            tenant?: string | null;
        };
        /** PriceView */
        PriceView: {
            id: string;
            /** @enum {string} */
            subject_kind: "model" | "adapter";
            subject: string;
            currency: string;
            effective_from: number;
            created_at: number;
            tiers: {
                [key: string]: components["schemas"]["UnitPrices"];
            };
        };
        /** ProjectChange */
        ProjectChange: {
            name?: string | null;
            default_max_tokens?: number | null;
        };
        /** ProjectView */
        ProjectView: {
            id: string;
            tenant_id: string;
            name: string;
            default_max_tokens: number | null;
            created_at: number;
        };
        /** Promotion */
        Promotion: {
            version: number | string;
        };
        /** Recompute */
        Recompute: {
            tokens: number;
            device_s: number;
        };
        /** ReconciliationView */
        ReconciliationView: {
            number: number;
            /** @enum {string} */
            kind: "minute" | "month" | "whole";
            sound: boolean;
            at: number;
            took_s: number;
            sequence_from: number;
            sequence_to: number;
            imbalances: components["schemas"]["Imbalance"][];
            overshot: string[];
            engine_gap: number | null;
        };
        /** Rotation */
        Rotation: {
            /** @default 86400 */
            overlap_s: number;
        };
        /** SessionKey */
        SessionKey: {
            id: string;
            name: string;
            last_four: string;
        };
        /** SessionTenant */
        SessionTenant: {
            id: string;
            slug: string;
            name: string;
        };
        /** SessionView */
        SessionView: {
            /** @enum {string} */
            role: "owner" | "operator" | "finance" | "tenant_admin" | "read_only";
            tenant: components["schemas"]["SessionTenant"] | null;
            key: components["schemas"]["SessionKey"];
            permissions: string[];
            csrf_token: string;
            expires_at: number;
        };
        /** SignIn */
        SignIn: {
            key: string;
        };
        /** StandingView */
        StandingView: {
            imbalances: number;
            overshot: number;
            at: number | null;
        };
        /** TenantChange */
        TenantChange: {
            name?: string | null;
            tier?: string | null;
            /** @enum {null|string} */
            status?: "active" | "suspended" | null;
            default_max_tokens?: number | null;
            share_weight?: number | null;
            time_zone?: string | null;
        };
        /** TenantPreview */
        TenantPreview: {
            tenant_id: string;
            requests: number;
            was_picos: number | bigint;
            would_picos: number | bigint;
        };
        /** TenantView */
        TenantView: {
            id: string;
            slug: string;
            name: string;
            tier: string;
            currency: string;
            /** @enum {string} */
            status: "active" | "suspended";
            default_max_tokens: number | null;
            share_weight: number;
            time_zone: string;
            created_at: number;
        };
        /** TierMargin */
        TierMargin: {
            tier: string | null;
            currency: string;
            requests: number;
            usage_picos: number | bigint;
            correction_picos: number | bigint;
            device_s: number;
            preemption_s: number;
            preempted_tokens: number;
            cost_picos: number | bigint;
            preemption_picos: number | bigint;
            margin_picos: number | bigint;
        };
        /** TokenCount */
        TokenCount: {
            input_tokens: number;
        };
        /** Totals */
        Totals: {
            requests: number;
            prompt_tokens: number;
            cached_tokens: number;
            completion_tokens: number;
            made_tokens: number;
            discarded_tokens: number;
            device_s: number;
            preemptions: number;
            recomputed: {
                [key: string]: components["schemas"]["Recompute"];
            };
            swapped_tokens: number;
            cost_picos: {
                [key: string]: number | bigint;
            };
        };
        /** UnitPrices */
        UnitPrices: {
            input: number;
            cached_input: number;
            output: number;
        };
        /** UploadView */
        UploadView: {
            id: string;
            /**
             * @default receiving
             * @enum {string}
             */
            state: "receiving" | "checking";
            /** @default 0 */
            bytes_received: number;
            bytes_total: number | null;
            started_at: number;
        };
        /** UsageBucket */
        UsageBucket: {
            /**
             * @default bucket
             * @constant
             */
            object: "bucket";
            start_time: number;
            end_time: number;
            results: components["schemas"]["UsageResult"][];
        };
        /** UsagePage */
        UsagePage: {
            /**
             * @default page
             * @constant
             */
            object: "page";
            data: components["schemas"]["UsageBucket"][];
            has_more: boolean;
            next_page: string | null;
        };
        /** UsageResult */
        UsageResult: {
            /**
             * @default organization.usage.completions.result
             * @constant
             */
            object: "organization.usage.completions.result";
            input_tokens: number;
            input_cached_tokens: number;
            output_tokens: number;
            /** @default 0 */
            input_audio_tokens: number;
            /** @default 0 */
            output_audio_tokens: number;
            num_model_requests: number;
            project_id?: string | null;
            user_id?: null;
            api_key_id?: string | null;
            model?: string | null;
            batch?: null;
            service_tier?: string | null;
            tenant_id?: string | null;
            adapter?: string | null;
            tier?: string | null;
            currency: string;
            cost_picos: number | bigint;
            made_tokens: number;
            discarded_tokens: number;
            device_s: number;
            preemptions: number;
        };
        /** UsageView */
        UsageView: {
            sequence: number;
            request_id: string;
            tenant_id: string;
            project_id: string | null;
            key_id: string;
            model: string;
            adapter: string | null;
            tier: string;
            price_version_id: string;
            currency: string;
            prompt_tokens: number;
            cached_tokens: number;
            completion_tokens: number;
            made_tokens: number;
            discarded_tokens: number;
            discard_reason: string | null;
            cost_picos: number | bigint;
            ending: string;
            queue_s: number;
            ttft_s: number;
            device_s: number;
            preemptions: number;
            recomputed_tokens: number;
            swapped_tokens: number;
            started_at: number;
            finished_at: number;
            recomputed: {
                [key: string]: components["schemas"]["Recompute"];
            };
        };
        /** Version */
        Version: {
            adapter_id: string;
            number: number;
            digest: string;
            replaced: number | null;
            bytes: number | null;
            rank_max: number | null;
            parameters: number | null;
            targets: string[];
            trained_for: string | null;
            warnings: string[];
            created_at: number;
            removed_at: number | null;
        };
        /** WebhookView */
        WebhookView: {
            id: string;
            tenant_id: string | null;
            url: string;
            created_at: number;
        };
        /** WholeInvoiceView */
        WholeInvoiceView: {
            id: string;
            tenant_id: string;
            period: components["schemas"]["PeriodView"];
            currency: string;
            usage_picos: number | bigint;
            correction_picos: number | bigint;
            total_picos: number | bigint;
            issued_at: number;
            lines: components["schemas"]["LineView"][];
        };
        /**
         * ErrorBody
         * @description The body of every error answer, and of an error event in a stream.
         */
        ErrorBody: {
            error: components["schemas"]["ErrorDetail"];
        };
        /** ErrorDetail */
        ErrorDetail: {
            message: string;
            type: string;
            param: string | null;
            code: string | null;
        };
        /**
         * AnthropicError
         * @description The body of every error answer below /v1/messages, and of an error event in its streams.
         */
        AnthropicError: {
            /** @enum {unknown} */
            type: "error";
            error: components["schemas"]["AnthropicDetail"];
            request_id: string;
        };
        /** AnthropicDetail */
        AnthropicDetail: {
            type: string;
            message: string;
        };
        /**
         * ChatRequest
         * @description What to answer, and how. A field typed Any must have one of its NEUTRAL values.
         */
        ChatRequest: {
            model: string;
            /** @default null */
            max_tokens: number | null;
            /** @default null */
            n: number | null;
            /** @default null */
            temperature: number | null;
            /** @default null */
            top_p: number | null;
            /** @default null */
            top_k: number | null;
            /** @default null */
            min_p: number | null;
            /** @default null */
            presence_penalty: number | null;
            /** @default null */
            frequency_penalty: number | null;
            /** @default null */
            repetition_penalty: number | null;
            /** @default null */
            logit_bias: {
                [key: string]: number;
            } | null;
            /** @default null */
            seed: number | null;
            /** @default null */
            stop: string | string[] | null;
            /** @default null */
            stop_token_ids: number[] | null;
            /** @default null */
            min_tokens: number | null;
            /** @default null */
            ignore_eos: boolean | null;
            /** @default null */
            skip_special_tokens: boolean | null;
            /** @default null */
            stream: boolean | null;
            /** @default null */
            stream_options: components["schemas"]["StreamOptions"] | null;
            /** @default null */
            service_tier: string | null;
            /** @default null */
            user: string | null;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            allowed_token_ids: null;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            bad_words: null | never[];
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            include_stop_str_in_output: null | false;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            length_penalty: null | 1;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            prompt_logprobs: null;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            spaces_between_special_tokens: null | true;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            truncate_prompt_tokens: null;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            use_beam_search: null | false;
            messages: (components["schemas"]["SystemMessage"] | components["schemas"]["DeveloperMessage"] | components["schemas"]["UserMessage"] | components["schemas"]["AssistantMessage"])[];
            /** @default null */
            max_completion_tokens: number | null;
            /** @default null */
            logprobs: boolean | null;
            /** @default null */
            top_logprobs: number | null;
            /** @default null */
            add_generation_prompt: boolean | null;
            /** @default null */
            continue_final_message: boolean | null;
            /** @default null */
            metadata: {
                [key: string]: string;
            } | null;
            /** @default null */
            safety_identifier: string | null;
            /** @default null */
            prompt_cache_key: string | null;
            /** @default null */
            prompt_cache_options: Record<string, never> | null;
            /** @default null */
            prompt_cache_retention: string | null;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            audio: null;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            chat_template: null;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            chat_template_kwargs: null | Record<string, never>;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            documents: null | never[];
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            echo: null | false;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            function_call: null | "none" | "auto";
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            functions: null | never[];
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            modalities: null | [
                "text"
            ];
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            moderation: null;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            parallel_tool_calls: null | true | false;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            prediction: null;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            reasoning_effort: null | "none";
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            response_format: null | {
                type: "text";
            };
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            store: null | false;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            tool_choice: null | "none" | "auto";
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            tools: null | never[];
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            verbosity: null | "medium";
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            web_search_options: null;
        };
        /** StreamOptions */
        StreamOptions: {
            /** @default null */
            include_usage: boolean | null;
            /** @default null */
            include_obfuscation: unknown;
        };
        /** SystemMessage */
        SystemMessage: {
            /** @enum {unknown} */
            role: "system";
            content: string | components["schemas"]["TextPart"][];
            /** @default null */
            name: null;
        };
        /** TextPart */
        TextPart: {
            /** @enum {unknown} */
            type: "text";
            text: string;
        };
        /**
         * DeveloperMessage
         * @description The newer name of a system message.
         */
        DeveloperMessage: {
            /** @enum {unknown} */
            role: "developer";
            content: string | components["schemas"]["TextPart"][];
            /** @default null */
            name: null;
        };
        /** UserMessage */
        UserMessage: {
            /** @enum {unknown} */
            role: "user";
            content: string | components["schemas"]["TextPart"][];
            /** @default null */
            name: null;
        };
        /**
         * AssistantMessage
         * @description As a caller writes it, or as we returned it, with the empty fields that SDKs add.
         */
        AssistantMessage: {
            /** @enum {unknown} */
            role: "assistant";
            content: string | components["schemas"]["TextPart"][];
            /** @default null */
            name: null;
            /** @default null */
            refusal: null;
            /** @default null */
            annotations: unknown[] | null;
            /** @default null */
            tool_calls: unknown[] | null;
            /** @default null */
            audio: null;
            /** @default null */
            function_call: null;
            /** @default null */
            provider_specific_fields: {
                [key: string]: null;
            } | null;
        };
        /** ChatCompletion */
        ChatCompletion: {
            id: string;
            /**
             * @default chat.completion
             * @enum {unknown}
             */
            object: "chat.completion";
            created: number;
            model: string;
            service_tier: string;
            system_fingerprint: string;
            choices: components["schemas"]["Choice"][];
            usage: components["schemas"]["Usage"];
        };
        /** Choice */
        Choice: {
            /** @default 0 */
            index: number;
            message: components["schemas"]["AnswerMessage"];
            /** @default null */
            logprobs: components["schemas"]["ChoiceLogprobs"] | null;
            /** @enum {unknown} */
            finish_reason: "length" | "stop";
        };
        /** AnswerMessage */
        AnswerMessage: {
            /**
             * @default assistant
             * @enum {unknown}
             */
            role: "assistant";
            content: string;
            /** @default null */
            refusal: null;
            /** @default [] */
            annotations: unknown[];
        };
        /**
         * ChoiceLogprobs
         * @description One for each completion token, also for the one that ended the text and shows nothing.
         */
        ChoiceLogprobs: {
            content: components["schemas"]["TokenLogprob"][];
            /** @default null */
            refusal: null;
        };
        /**
         * TokenLogprob
         * @description One id of the answer, and the likeliest in its place, likeliest first.
         */
        TokenLogprob: {
            token: string;
            logprob: number;
            bytes: number[];
            top_logprobs: components["schemas"]["Alternative"][];
        };
        /**
         * Alternative
         * @description An id by its text. `bytes` is exact where the text is not: a token may be a part of a character.
         */
        Alternative: {
            token: string;
            logprob: number;
            bytes: number[];
        };
        /** Usage */
        Usage: {
            prompt_tokens: number;
            completion_tokens: number;
            total_tokens: number;
            prompt_tokens_details: components["schemas"]["PromptTokensDetails"];
            /**
             * @default {
             *       "reasoning_tokens": 0,
             *       "audio_tokens": 0,
             *       "accepted_prediction_tokens": 0,
             *       "rejected_prediction_tokens": 0
             *     }
             */
            completion_tokens_details: components["schemas"]["CompletionTokensDetails"];
        };
        /** PromptTokensDetails */
        PromptTokensDetails: {
            cached_tokens: number;
            /** @default 0 */
            audio_tokens: number;
        };
        /** CompletionTokensDetails */
        CompletionTokensDetails: {
            /** @default 0 */
            reasoning_tokens: number;
            /** @default 0 */
            audio_tokens: number;
            /** @default 0 */
            accepted_prediction_tokens: number;
            /** @default 0 */
            rejected_prediction_tokens: number;
        };
        /** ChatCompletionChunk */
        ChatCompletionChunk: {
            id: string;
            /**
             * @default chat.completion.chunk
             * @enum {unknown}
             */
            object: "chat.completion.chunk";
            created: number;
            model: string;
            service_tier: string;
            system_fingerprint: string;
            choices: components["schemas"]["ChunkChoice"][];
            usage?: components["schemas"]["Usage"] | null;
        };
        /** ChunkChoice */
        ChunkChoice: {
            /** @default 0 */
            index: number;
            delta: components["schemas"]["Delta"];
            /** @default null */
            logprobs: components["schemas"]["ChoiceLogprobs"] | null;
            /** @default null */
            finish_reason: ("length" | "stop") | null;
        };
        /** Delta */
        Delta: {
            /** @enum {unknown} */
            role?: "assistant";
            content?: string;
        };
        /**
         * CompletionRequest
         * @description What to go on from, and how. A field typed Any must have one of its NEUTRAL values.
         */
        CompletionRequest: {
            model: string;
            /** @default null */
            max_tokens: number | null;
            /** @default null */
            n: number | null;
            /** @default null */
            temperature: number | null;
            /** @default null */
            top_p: number | null;
            /** @default null */
            top_k: number | null;
            /** @default null */
            min_p: number | null;
            /** @default null */
            presence_penalty: number | null;
            /** @default null */
            frequency_penalty: number | null;
            /** @default null */
            repetition_penalty: number | null;
            /** @default null */
            logit_bias: {
                [key: string]: number;
            } | null;
            /** @default null */
            seed: number | null;
            /** @default null */
            stop: string | string[] | null;
            /** @default null */
            stop_token_ids: number[] | null;
            /** @default null */
            min_tokens: number | null;
            /** @default null */
            ignore_eos: boolean | null;
            /** @default null */
            skip_special_tokens: boolean | null;
            /** @default null */
            stream: boolean | null;
            /** @default null */
            stream_options: components["schemas"]["StreamOptions"] | null;
            /** @default null */
            service_tier: string | null;
            /** @default null */
            user: string | null;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            allowed_token_ids: null;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            bad_words: null | never[];
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            include_stop_str_in_output: null | false;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            length_penalty: null | 1;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            prompt_logprobs: null;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            spaces_between_special_tokens: null | true;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            truncate_prompt_tokens: null;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            use_beam_search: null | false;
            /** @description A text, a list of texts, a list of ids, or a list of lists of ids; at most 16 */
            prompt: string | (string | number | number[])[];
            /** @default null */
            echo: boolean | null;
            /** @default null */
            logprobs: number | null;
            /** @default null */
            best_of: number | null;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            add_special_tokens: null | true;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            suffix: null | "";
        };
        /**
         * Completion
         * @description A whole answer, or one chunk of a stream: then `finish_reason` is null but in the last of a text.
         */
        Completion: {
            id: string;
            /**
             * @default text_completion
             * @enum {unknown}
             */
            object: "text_completion";
            created: number;
            model: string;
            service_tier: string;
            system_fingerprint: string;
            choices: components["schemas"]["CompletionChoice"][];
            usage?: components["schemas"]["Usage"] | null;
        };
        /**
         * CompletionChoice
         * @description Text j of prompt i has the index i × n + j.
         */
        CompletionChoice: {
            index: number;
            text: string;
            /** @default null */
            logprobs: components["schemas"]["CompletionLogprobs"] | null;
            finish_reason: ("length" | "stop") | null;
        };
        /**
         * CompletionLogprobs
         * @description Lists of one length, an item for each completion token. `text_offset` counts characters from the text's
         *         beginning; `top_logprobs` has the drawn token too. A token that is a part of a character is spelled
         *         "bytes:\\xe2".
         */
        CompletionLogprobs: {
            text_offset: number[];
            token_logprobs: number[];
            tokens: string[];
            top_logprobs: {
                [key: string]: number;
            }[];
        };
        /**
         * MessagesRequest
         * @description What to answer, and how.
         */
        MessagesRequest: {
            messages: components["schemas"]["Message"][];
            model: string;
            /** @default null */
            system: string | components["schemas"]["TextBlock"][] | null;
            /** @default null */
            cache_control: components["schemas"]["CacheControl"] | null;
            /** @default null */
            user_profile_id: string | null;
            /** @default null */
            workspace_id: string | null;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            betas: null | never[];
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            context_management: null;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            mcp_servers: null | never[];
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            output_config: null | Record<string, never>;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            output_format: null;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            speed: null | "standard";
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            thinking: null | {
                type: "disabled";
            };
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            tool_choice: null | {
                type: "auto";
            } | {
                type: "none";
            };
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            tools: null | never[];
            max_tokens: number;
            /** @default null */
            stop_sequences: string[] | null;
            /** @default null */
            stream: boolean | null;
            /** @default null */
            temperature: number | null;
            /** @default null */
            top_k: number | null;
            /** @default null */
            top_p: number | null;
            /** @default null */
            service_tier: string | null;
            /** @default null */
            metadata: components["schemas"]["Metadata"] | null;
            /** @default null */
            diagnostics: unknown;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            container: null;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            inference_geo: null | "global";
        };
        /** Message */
        Message: {
            /** @enum {unknown} */
            role: "assistant" | "system" | "user";
            content: string | components["schemas"]["TextBlock"][];
        };
        /**
         * TextBlock
         * @description As a caller writes it, or as we returned it.
         */
        TextBlock: {
            /** @enum {unknown} */
            type: "text";
            text: string;
            /** @default null */
            cache_control: components["schemas"]["CacheControl"] | null;
            /** @default null */
            citations: unknown[] | null;
        };
        /**
         * CacheControl
         * @description A hint: every prompt is cached here, by its pages.
         */
        CacheControl: {
            /** @enum {unknown} */
            type: "ephemeral";
            /** @default null */
            ttl: ("1h" | "5m") | null;
        };
        /**
         * Metadata
         * @description A hint.
         */
        Metadata: {
            /** @default null */
            user_id: string | null;
        };
        /** MessageAnswer */
        MessageAnswer: {
            /** @enum {unknown} */
            type: "message";
            id: string;
            /**
             * @default assistant
             * @enum {unknown}
             */
            role: "assistant";
            model: string;
            content: components["schemas"]["TextContent"][];
            stop_reason: ("end_turn" | "max_tokens" | "stop_sequence") | null;
            stop_sequence: string | null;
            usage: components["schemas"]["ServedUsage"];
        };
        /** TextContent */
        TextContent: {
            /** @enum {unknown} */
            type: "text";
            text: string;
            /** @default null */
            citations: null;
        };
        /**
         * ServedUsage
         * @description `service_tier`: the tier served, in this API's words.
         */
        ServedUsage: {
            input_tokens: number;
            /** @default 0 */
            cache_creation_input_tokens: number;
            /** @default 0 */
            cache_read_input_tokens: number;
            output_tokens: number;
            service_tier: string;
        };
        /** MessageStart */
        MessageStart: {
            /** @enum {unknown} */
            type: "message_start";
            message: components["schemas"]["MessageAnswer"];
        };
        /** BlockStart */
        BlockStart: {
            /** @enum {unknown} */
            type: "content_block_start";
            content_block: components["schemas"]["TextContent"];
            /** @default 0 */
            index: number;
        };
        /** BlockDelta */
        BlockDelta: {
            /** @enum {unknown} */
            type: "content_block_delta";
            delta: components["schemas"]["TextDelta"];
            /** @default 0 */
            index: number;
        };
        /** TextDelta */
        TextDelta: {
            /** @enum {unknown} */
            type: "text_delta";
            text: string;
        };
        /** BlockStop */
        BlockStop: {
            /** @enum {unknown} */
            type: "content_block_stop";
            /** @default 0 */
            index: number;
        };
        /** MessageDelta */
        MessageDelta: {
            /** @enum {unknown} */
            type: "message_delta";
            delta: components["schemas"]["Ending"];
            usage: components["schemas"]["MessagesUsage"];
        };
        /** Ending */
        Ending: {
            /** @enum {unknown} */
            stop_reason: "end_turn" | "max_tokens" | "stop_sequence";
            stop_sequence: string | null;
        };
        /**
         * MessagesUsage
         * @description `input_tokens` are those that were not found in the cache. Nothing extra is charged for what goes into it.
         */
        MessagesUsage: {
            input_tokens: number;
            /** @default 0 */
            cache_creation_input_tokens: number;
            /** @default 0 */
            cache_read_input_tokens: number;
            output_tokens: number;
        };
        /** MessageStop */
        MessageStop: {
            /** @enum {unknown} */
            type: "message_stop";
        };
        /**
         * CountRequest
         * @description A conversation. A last message of the assistant is the beginning of the answer. A field typed Any must have one
         *         of its NEUTRAL values.
         */
        CountRequest: {
            messages: components["schemas"]["Message"][];
            model: string;
            /** @default null */
            system: string | components["schemas"]["TextBlock"][] | null;
            /** @default null */
            cache_control: components["schemas"]["CacheControl"] | null;
            /** @default null */
            user_profile_id: string | null;
            /** @default null */
            workspace_id: string | null;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            betas: null | never[];
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            context_management: null;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            mcp_servers: null | never[];
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            output_config: null | Record<string, never>;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            output_format: null;
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            speed: null | "standard";
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            thinking: null | {
                type: "disabled";
            };
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            tool_choice: null | {
                type: "auto";
            } | {
                type: "none";
            };
            /**
             * @description Not supported beyond these neutral values.
             * @default null
             * @enum {unknown}
             */
            tools: null | never[];
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type $defs = Record<string, never>;
export interface operations {
    V1ChatCompletionsChatCompletions: {
        parameters: {
            query?: never;
            header?: {
                /** @description Of a call that does not stream: asked again within ten minutes, it is answered as it was before. */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ChatRequest"];
            };
        };
        responses: {
            /** @description Server-sent events: `data: ` and a ChatCompletionChunk, then `data: [DONE]`; an error ends it. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ChatCompletion"];
                    "text/event-stream": components["schemas"]["ChatCompletionChunk"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    TTenantV1ChatCompletionsChatCompletions: {
        parameters: {
            query?: never;
            header?: {
                /** @description Of a call that does not stream: asked again within ten minutes, it is answered as it was before. */
                "Idempotency-Key"?: string;
            };
            path: {
                tenant: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ChatRequest"];
            };
        };
        responses: {
            /** @description Server-sent events: `data: ` and a ChatCompletionChunk, then `data: [DONE]`; an error ends it. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ChatCompletion"];
                    "text/event-stream": components["schemas"]["ChatCompletionChunk"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    TTenantV1CompletionsCompletions: {
        parameters: {
            query?: never;
            header?: {
                /** @description Of a call that does not stream: asked again within ten minutes, it is answered as it was before. */
                "Idempotency-Key"?: string;
            };
            path: {
                tenant: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CompletionRequest"];
            };
        };
        responses: {
            /** @description Server-sent events: `data: ` and a Completion, then `data: [DONE]`; an error ends it. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Completion"];
                    "text/event-stream": components["schemas"]["Completion"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1CompletionsCompletions: {
        parameters: {
            query?: never;
            header?: {
                /** @description Of a call that does not stream: asked again within ten minutes, it is answered as it was before. */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CompletionRequest"];
            };
        };
        responses: {
            /** @description Server-sent events: `data: ` and a Completion, then `data: [DONE]`; an error ends it. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Completion"];
                    "text/event-stream": components["schemas"]["Completion"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    TTenantV1MessagesMessages: {
        parameters: {
            query?: never;
            header?: {
                /** @description Of a call that does not stream: asked again within ten minutes, it is answered as it was before. */
                "Idempotency-Key"?: string;
            };
            path: {
                tenant: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["MessagesRequest"];
            };
        };
        responses: {
            /** @description Server-sent events, named by their type, from message_start to message_stop; an error event ends it. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["MessageAnswer"];
                    "text/event-stream": components["schemas"]["MessageStart"] | components["schemas"]["BlockStart"] | components["schemas"]["BlockDelta"] | components["schemas"]["BlockStop"] | components["schemas"]["MessageDelta"] | components["schemas"]["MessageStop"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AnthropicError"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AnthropicError"];
                };
            };
        };
    };
    V1MessagesMessages: {
        parameters: {
            query?: never;
            header?: {
                /** @description Of a call that does not stream: asked again within ten minutes, it is answered as it was before. */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["MessagesRequest"];
            };
        };
        responses: {
            /** @description Server-sent events, named by their type, from message_start to message_stop; an error event ends it. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["MessageAnswer"];
                    "text/event-stream": components["schemas"]["MessageStart"] | components["schemas"]["BlockStart"] | components["schemas"]["BlockDelta"] | components["schemas"]["BlockStop"] | components["schemas"]["MessageDelta"] | components["schemas"]["MessageStop"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AnthropicError"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AnthropicError"];
                };
            };
        };
    };
    V1MessagesCountTokensCountTokens: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CountRequest"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TokenCount"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AnthropicError"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AnthropicError"];
                };
            };
        };
    };
    TTenantV1MessagesCountTokensCountTokens: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                tenant: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CountRequest"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TokenCount"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AnthropicError"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AnthropicError"];
                };
            };
        };
    };
    TTenantV1ModelsListModels: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ModelList"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1ModelsListModels: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ModelList"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1ModelsGetModel: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                model: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ModelCard"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    TTenantV1ModelsGetModel: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                model: string;
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ModelCard"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    TTenantV1UsageOwnUsage: {
        parameters: {
            query?: {
                /** @description Unix seconds */
                start_time?: number | null;
                /** @description Unix seconds */
                end_time?: number | null;
            };
            header?: never;
            path: {
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["OwnUsage"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1UsageOwnUsage: {
        parameters: {
            query?: {
                /** @description Unix seconds */
                start_time?: number | null;
                /** @description Unix seconds */
                end_time?: number | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["OwnUsage"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    TTenantV1BudgetOwnBudgets: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["OwnBudgets"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1BudgetOwnBudgets: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["OwnBudgets"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    HealthLiveLive: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        [key: string]: boolean;
                    };
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    HealthReadyReady: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Health"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    MetricsMetrics: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/plain; version=0.0.4": string;
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminTenantsTenantIdGetTenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                tenant_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TenantView"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminTenantsTenantIdChangeTenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                tenant_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["TenantChange"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TenantView"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminTenantsListTenants: {
        parameters: {
            query?: {
                limit?: number;
                /** @description `next_page` of the page before */
                page?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_gateway.views.TenantView_"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminTenantsCreateTenant: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewTenant"];
            };
        };
        responses: {
            /** @description Document created, URL follows */
            201: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TenantView"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminProjectsProjectIdChangeProject: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                project_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ProjectChange"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ProjectView"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminProjectsListProjects: {
        parameters: {
            query: {
                /** @description an id or a slug */
                tenant: string;
                limit?: number;
                /** @description `next_page` of the page before */
                page?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_gateway.views.ProjectView_"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminProjectsCreateProject: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewProject"];
            };
        };
        responses: {
            /** @description Document created, URL follows */
            201: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ProjectView"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminKeysKeyIdGetKey: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                key_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Key"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminKeysKeyIdChangeKey: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                key_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["KeyChange"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Key"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminKeysListKeys: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                limit?: number;
                /** @description `next_page` of the page before */
                page?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_gateway.keys.Key_"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminKeysCreateKey: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewKey"];
            };
        };
        responses: {
            /** @description Document created, URL follows */
            201: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["NewKeyView"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminKeysKeyIdRevokeRevokeKey: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                key_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Key"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminKeysKeyIdRotateRotateKey: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                key_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Rotation"];
            };
        };
        responses: {
            /** @description Document created, URL follows */
            201: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["NewKeyView"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminPricesListPrices: {
        parameters: {
            query?: {
                subject?: string | null;
                limit?: number;
                /** @description `next_page` of the page before */
                page?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_gateway.views.PriceView_"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminPricesPublishPrice: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewPrice"];
            };
        };
        responses: {
            /** @description Document created, URL follows */
            201: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PriceView"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminPricesPreviewPreviewPrice: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PricePreview"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Preview"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminBudgetsListBudgets: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                limit?: number;
                /** @description `next_page` of the page before */
                page?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_gateway.views.BudgetView_"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminBudgetsSetBudget: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["BudgetSetting"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["BudgetView"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminBudgetsBudgetIdRemoveBudget: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                budget_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, nothing follows */
            204: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminWebhooksListWebhooks: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                limit?: number;
                /** @description `next_page` of the page before */
                page?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_gateway.views.WebhookView_"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminWebhooksCreateWebhook: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewWebhook"];
            };
        };
        responses: {
            /** @description Document created, URL follows */
            201: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["NewWebhookView"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminWebhooksWebhookIdRemoveWebhook: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                webhook_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, nothing follows */
            204: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminAlertsListAlerts: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                limit?: number;
                /** @description `next_page` of the page before */
                page?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_gateway.views.ListedAlertView_"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminExportsListExports: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                limit?: number;
                /** @description `next_page` of the page before */
                page?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_gateway.views.ExportView_"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminExportsCreateExport: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewExport"];
            };
        };
        responses: {
            /** @description Document created, URL follows */
            201: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ExportView"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminExportsExportIdFileDownload: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                export_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description File Download */
            200: {
                headers: {
                    /** @description File size in bytes */
                    "content-length"?: string;
                    /** @description Last modified data-time in RFC 2822 format */
                    "last-modified"?: string;
                    /** @description Entity tag */
                    etag?: string;
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "": string;
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminExportsExportIdManifestDownloadManifest: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                export_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description File Download */
            200: {
                headers: {
                    /** @description File size in bytes */
                    "content-length"?: string;
                    /** @description Last modified data-time in RFC 2822 format */
                    "last-modified"?: string;
                    /** @description Entity tag */
                    etag?: string;
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "": string;
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminExportsExportIdGetExport: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                export_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ExportView"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminExportsExportIdEndExport: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                export_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, nothing follows */
            204: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminLimitsListLimits: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                limit?: number;
                /** @description `next_page` of the page before */
                page?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_gateway.allowances.OwnLimits_"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminLimitsSetLimits: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["LimitsSetting"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["OwnLimits"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminLimitsLimitsIdRemoveLimits: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                limits_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, nothing follows */
            204: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminAdaptersGetAdapter: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                adapter: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Adapter"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminAdaptersRemoveAdapter: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                adapter: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, nothing follows */
            204: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminAdaptersChangeAdapter: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                adapter: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["AdapterChange"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Adapter"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminAdaptersCheckCheckAdapter: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "multipart/form-data": {
                    /** Format: binary */
                    "adapter_config.json": string;
                    /** Format: binary */
                    "adapter_model.safetensors": string;
                    name?: string;
                    base?: string;
                    tenant?: string;
                    /** @description tenants (ids or slugs), with commas between them; * for all */
                    shared?: string;
                    /** @enum {string} */
                    pinned?: "true" | "1" | "false" | "0";
                    notes?: string;
                    /** @enum {string} */
                    promote?: "true" | "1" | "false" | "0";
                };
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Facts"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminAdaptersListAdapters: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                limit?: number;
                /** @description `next_page` of the page before */
                page?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_gateway.adapter_rows.Adapter_"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminAdaptersUploadAdapter: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "multipart/form-data": {
                    /** Format: binary */
                    "adapter_config.json": string;
                    /** Format: binary */
                    "adapter_model.safetensors": string;
                    name: string;
                    base?: string;
                    tenant?: string;
                    /** @description tenants (ids or slugs), with commas between them; * for all */
                    shared?: string;
                    /** @enum {string} */
                    pinned?: "true" | "1" | "false" | "0";
                    notes?: string;
                    /** @enum {string} */
                    promote?: "true" | "1" | "false" | "0";
                };
            };
        };
        responses: {
            /** @description Document created, URL follows */
            201: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AddedAdapterView"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminAdaptersUploadsListUploads: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["UploadView"][];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminAdaptersVersionsListVersions: {
        parameters: {
            query?: {
                limit?: number;
                /** @description `next_page` of the page before */
                page?: string | null;
            };
            header?: never;
            path: {
                adapter: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_gateway.adapter_rows.Version_"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminAdaptersPromotePromoteAdapter: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                adapter: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Promotion"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Adapter"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminAdaptersVersionsRemoveAdapterVersion: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                adapter: string;
                version: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, nothing follows */
            204: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminAdaptersRollbackRollBackAdapter: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                adapter: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Adapter"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminUsageUsageTotals: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                project_id?: string | null;
                key_id?: string | null;
                model?: string | null;
                adapter?: string | null;
                tier?: string | null;
                /** @description Unix seconds */
                start_time?: number | null;
                /** @description Unix seconds */
                end_time?: number | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Totals"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminUsageRequestsUsageRequests: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                project_id?: string | null;
                key_id?: string | null;
                model?: string | null;
                adapter?: string | null;
                tier?: string | null;
                /** @description Unix seconds */
                start_time?: number | null;
                /** @description Unix seconds */
                end_time?: number | null;
                limit?: number;
                /** @description `next_page` of the page before */
                page?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_gateway.views.UsageView_"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminAuditAuditFindings: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AuditView"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminAuditLogListAuditLog: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                actor?: string | null;
                action?: string | null;
                object_id?: string | null;
                /** @description Unix seconds */
                start_time?: number | null;
                /** @description Unix seconds */
                end_time?: number | null;
                limit?: number;
                /** @description `next_page` of the page before */
                page?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_gateway.views.AuditLineView_"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminEngineEngineStatus: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["EngineView"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminPeriodsListPeriods: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                /** @description for example 2026-01 */
                month?: string | null;
                state?: "open" | "closed" | null;
                limit?: number;
                /** @description `next_page` of the page before */
                page?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_gateway.finance_views.PeriodView_"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminPeriodsCloseClosePeriod: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PeriodClosing"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["InvoiceView"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminInvoicesListInvoices: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                /** @description for example 2026-01 */
                month?: string | null;
                limit?: number;
                /** @description `next_page` of the page before */
                page?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_gateway.finance_views.InvoiceView_"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminInvoicesInvoiceIdGetInvoice: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                invoice_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["WholeInvoiceView"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminCorrectionsListCorrections: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                request_id?: string | null;
                limit?: number;
                /** @description `next_page` of the page before */
                page?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_gateway.finance_views.CorrectionView_"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminCorrectionsMakeCorrection: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewCorrection"];
            };
        };
        responses: {
            /** @description Document created, URL follows */
            201: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CorrectionView"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminMarginsTierMargins: {
        parameters: {
            query?: {
                /** @description for example 2026-01 */
                month?: string | null;
                /** @description an id or a slug */
                tenant?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Margins"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminReconciliationsListReconciliations: {
        parameters: {
            query?: {
                limit?: number;
                /** @description `next_page` of the page before */
                page?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_gateway.finance_views.ReconciliationView_"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminReconciliationsReconcileNow: {
        parameters: {
            query?: {
                /** @description for example 2026-01 */
                month?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ReconciliationView"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminReconciliationsStandingReconciliationStanding: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["StandingView"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1OrganizationUsageCompletionsOrganizationUsage: {
        parameters: {
            query: {
                /** @description Unix seconds */
                start_time: number;
                /** @description Unix seconds; without it: now */
                end_time?: number | null;
                bucket_width?: "1m" | "1h" | "1d";
                tenants?: string[] | null;
                project_ids?: string[] | null;
                api_key_ids?: string[] | null;
                models?: string[] | null;
                adapters?: string[] | null;
                tiers?: string[] | null;
                group_by?: ("tenant_id" | "project_id" | "api_key_id" | "model" | "adapter" | "service_tier")[] | null;
                limit?: number | null;
                /** @description `next_page` of the page before */
                page?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["UsagePage"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1OrganizationCostsOrganizationCosts: {
        parameters: {
            query: {
                /** @description Unix seconds */
                start_time: number;
                /** @description Unix seconds; without it: now */
                end_time?: number | null;
                bucket_width?: "1d";
                tenants?: string[] | null;
                project_ids?: string[] | null;
                api_key_ids?: string[] | null;
                models?: string[] | null;
                adapters?: string[] | null;
                tiers?: string[] | null;
                group_by?: ("tenant_id" | "project_id" | "api_key_id" | "model" | "adapter" | "service_tier")[] | null;
                limit?: number | null;
                /** @description `next_page` of the page before */
                page?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CostPage"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminSessionGetSession: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SessionView"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminSessionSignIn: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["SignIn"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SessionView"];
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
    V1AdminSessionSignOut: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, nothing follows */
            204: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": null;
                };
            };
            /** @description A refusal, with its reason */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
            /** @description A refusal, with its reason */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorBody"];
                };
            };
        };
    };
}
