// Generated from the gateway's OpenAPI by `npm run types`; not edited by hand.
export interface paths {
    "/health": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Ready
         * @description Whether requests can be served now: 200, or 503 with the problems.
         */
        get: operations["GetHealth"];
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
        /**
         * Live
         * @description Whether the process runs.
         */
        get: operations["GetLiveness"];
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
        /**
         * Ready
         * @description Whether requests can be served now: 200, or 503 with the problems.
         */
        get: operations["GetReadiness"];
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
        /**
         * Metrics
         * @description Prometheus text format, for an admin key that may read the engine. Without an engine, only the gateway's part; of
         *     several engines each series has the label `engine`.
         *     Any worker reports the series of all workers, labelled `worker`.
         */
        get: operations["GetMetrics"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/batches": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListBatches
         * @description The tenant's batches, the newest first.
         */
        get: operations["ListBatchesForTenant"];
        put?: never;
        /**
         * CreateBatch
         * @description Create a batch of an uploaded file. With an Idempotency-Key a repeated call gets the same batch, for a day.
         *     Counts as a request under the limits, as every endpoint of batches does; its lines do not.
         */
        post: operations["CreateBatchForTenant"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/batches/{batch}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetBatch
         * @description A batch, with its counts and usage so far.
         */
        get: operations["GetBatchForTenant"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/batches/{batch}/cancel": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * CancelBatch
         * @description End a batch early. Lines that run are aborted and not billed; the outputs so far remain.
         */
        post: operations["CancelBatchForTenant"];
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
        /**
         * OwnBudgets
         * @description The used, held and remaining amounts of each budget, and when it resets (Unix seconds; null: never).
         */
        get: operations["ListBudgetsForTenant"];
        put?: never;
        post?: never;
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
        /**
         * ChatCompletions
         * @description Create a chat completion.
         */
        post: operations["CreateChatCompletionForTenant"];
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
        /**
         * Completions
         * @description Create completions of one or several prompts.
         */
        post: operations["CreateCompletionForTenant"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/conversations": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * CreateConversation
         * @description Create a conversation. Counts as a request under the limits, as every endpoint of conversations does.
         */
        post: operations["CreateConversationForTenant"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/conversations/{conversation}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetConversation
         * @description A conversation, without its items.
         */
        get: operations["GetConversationForTenant"];
        put?: never;
        /**
         * UpdateConversation
         * @description Replace the metadata of a conversation.
         */
        post: operations["UpdateConversationForTenant"];
        /**
         * DeleteConversation
         * @description Delete a conversation and its items. Responses that were made in it remain.
         */
        delete: operations["DeleteConversationForTenant"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/conversations/{conversation}/items": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListItems
         * @description The items of a conversation.
         */
        get: operations["ListConversationItemsForTenant"];
        put?: never;
        /**
         * AddItems
         * @description Append items to a conversation. Answers with them, as they are stored.
         */
        post: operations["AddConversationItemsForTenant"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/conversations/{conversation}/items/{item}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetItem
         * @description An item of a conversation.
         */
        get: operations["GetConversationItemForTenant"];
        put?: never;
        post?: never;
        /**
         * DeleteItem
         * @description Delete an item of a conversation. Answers with the conversation.
         */
        delete: operations["DeleteConversationItemForTenant"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/detokenize": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Detokenize
         * @description The text of token ids, special tokens included. Free.
         */
        post: operations["DetokenizeForTenant"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/embeddings": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Embeddings
         * @description Make a vector of each input, by pooling the model's last hidden states.
         */
        post: operations["CreateEmbeddingsForTenant"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/files": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListFiles
         * @description The tenant's files, in the order of their creation.
         */
        get: operations["ListFilesForTenant"];
        put?: never;
        /**
         * UploadFile
         * @description Upload a file for a batch, as a form with `purpose` and `file`. Counts as a request under the limits, as every
         *     endpoint of files does.
         */
        post: operations["UploadFileForTenant"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/files/{file}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetFile
         * @description A file, without its content.
         */
        get: operations["GetFileForTenant"];
        put?: never;
        post?: never;
        /**
         * DeleteFile
         * @description Delete a file. A running batch still reads the file.
         */
        delete: operations["DeleteFileForTenant"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/files/{file}/content": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetFileContent
         * @description The content of a file, as it was uploaded or written by a batch.
         */
        get: operations["GetFileContentForTenant"];
        put?: never;
        post?: never;
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
        /**
         * Messages
         * @description Create a message.
         */
        post: operations["CreateMessageForTenant"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/messages/batches": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListMessageBatches
         * @description The tenant's batches, the newest first. `after_id`: the page of older batches that begins after it; `before_id`:
         *     the page of newer batches that ends before it.
         */
        get: operations["ListMessageBatchesForTenant"];
        put?: never;
        /**
         * CreateMessageBatch
         * @description Create a batch of at most 100,000 requests or 256 MB. With an Idempotency-Key a repeated call gets the same
         *     batch, for a day. Counts as a request under the limits, as every endpoint of batches does; its requests do not.
         */
        post: operations["CreateMessageBatchForTenant"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/messages/batches/{batch}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetMessageBatch
         * @description A batch, with its counts.
         */
        get: operations["GetMessageBatchForTenant"];
        put?: never;
        post?: never;
        /**
         * DeleteMessageBatch
         * @description Delete an ended batch and its results.
         */
        delete: operations["DeleteMessageBatchForTenant"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/messages/batches/{batch}/cancel": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * CancelMessageBatch
         * @description End a batch early. Requests that run are aborted and not billed; the results so far remain.
         */
        post: operations["CancelMessageBatchForTenant"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/messages/batches/{batch}/results": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetMessageBatchResults
         * @description The results of an ended batch, as lines of JSON in any order. Each names its request by `custom_id`.
         */
        get: operations["GetMessageBatchResultsForTenant"];
        put?: never;
        post?: never;
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
        /**
         * CountTokens
         * @description Count the tokens of a prompt, as it would be charged when nothing of it is cached. Free.
         */
        post: operations["CountTokensForTenant"];
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
        /**
         * ListModels
         * @description List the base models, adapters and aliases that the key's tenant may use. With the header `anthropic-version`
         *     the answer is a page in Anthropic's shape, by `limit`, `after_id` and `before_id`.
         */
        get: operations["ListModelsForTenant"];
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
        /**
         * GetModel
         * @description One model, adapter or alias that the key's tenant may use. With the header `anthropic-version` in Anthropic's
         *     shape.
         */
        get: operations["GetModelForTenant"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/rerank": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Rerank
         * @description Order documents by the cosine of their embedding and the query's.
         */
        post: operations["RerankForTenant"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/responses": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Responses
         * @description Create a response.
         */
        post: operations["CreateResponseForTenant"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/responses/compact": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Compact
         * @description Replace a conversation by its user messages and a summary that the model writes. Billed as an answer.
         */
        post: operations["CompactConversationForTenant"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/responses/input_tokens": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * InputTokens
         * @description Count the tokens of a response's prompt. Free.
         */
        post: operations["CountInputTokensForTenant"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/responses/{response}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetResponse
         * @description A stored response. A response in the background may be streamed, from the event after `starting_after` on.
         */
        get: operations["GetResponseForTenant"];
        put?: never;
        post?: never;
        /**
         * DeleteResponse
         * @description Delete a stored response. Responses that continue it can then not be continued.
         */
        delete: operations["DeleteResponseForTenant"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/responses/{response}/cancel": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * CancelResponse
         * @description Cancel a response in the background. Its text so far is stored and billed. A response that has ended is returned
         *     unchanged.
         */
        post: operations["CancelResponseForTenant"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/responses/{response}/input_items": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListInputItems
         * @description The input of a stored response.
         */
        get: operations["ListInputItemsForTenant"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/score": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Score
         * @description The cosine of the embeddings of two texts, for each pair.
         */
        post: operations["ScoreForTenant"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/t/{tenant}/v1/tokenize": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Tokenize
         * @description The token ids of a text or of a conversation, as a completion with it is billed. Free.
         */
        post: operations["TokenizeForTenant"];
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
        /**
         * OwnUsage
         * @description The usage of this key.
         */
        get: operations["GetUsageForTenant"];
        put?: never;
        post?: never;
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
        /**
         * ListAdapters
         * @description Adapters of all owning tenants or of one. `name`: adapters of exactly this name, of which each owner has at
         *     most one.
         */
        get: operations["AdminListAdapters"];
        put?: never;
        /**
         * UploadAdapter
         * @description Upload an adapter as peft saves it: a new one, or under an existing name a new version. This gateway serves
         *     it when it answers, every other gateway within a second.
         */
        post: operations["AdminUploadAdapter"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
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
        /**
         * CheckAdapter
         * @description Check an upload as POST /v1/admin/adapters does, without storing it.
         */
        post: operations["AdminCheckAdapter"];
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
        /**
         * ListUploads
         * @description Uploads that this gateway process receives or checks now, oldest first, each with its tenant and key.
         */
        get: operations["AdminListAdapterUploads"];
        put?: never;
        post?: never;
        delete?: never;
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
        /**
         * GetAdapter
         * @description One adapter by its id, or by its name if only one adapter has it; this applies to all paths below.
         */
        get: operations["AdminGetAdapter"];
        put?: never;
        post?: never;
        /**
         * RemoveAdapter
         * @description Stop serving an adapter to new requests. Its files are deleted once no request uses them.
         */
        delete: operations["AdminRemoveAdapter"];
        options?: never;
        head?: never;
        /**
         * ChangeAdapter
         * @description Change which tenants may call an adapter, whether it is pinned, and its notes.
         */
        patch: operations["AdminChangeAdapter"];
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
        /**
         * PromoteAdapter
         * @description Serve this version to new requests. Requests in flight finish with the version that they began with.
         */
        post: operations["AdminPromoteAdapter"];
        delete?: never;
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
        /**
         * RollBackAdapter
         * @description Serve the version again that was served before the present one.
         */
        post: operations["AdminRollBackAdapter"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/adapters/{adapter}/use": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * AdapterUse
         * @description The use of each version of an adapter, for an actor with a tenant by this tenant only.
         */
        get: operations["AdminGetAdapterUse"];
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
        /**
         * ListVersions
         * @description The versions of an adapter, newest first. The adapter's `version` is the served one.
         */
        get: operations["AdminListAdapterVersions"];
        put?: never;
        post?: never;
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
        /**
         * GetAdapterVersion
         * @description One version that is not removed, by its number or at least 8 characters of its digest.
         */
        get: operations["AdminGetAdapterVersion"];
        put?: never;
        post?: never;
        /**
         * RemoveAdapterVersion
         * @description Remove a version that is not served.
         */
        delete: operations["AdminRemoveAdapterVersion"];
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
        /**
         * ListAlerts
         * @description Thresholds that were reached, the newest first, each with its deliveries. An actor of a tenant sees deliveries
         *     to the tenant's own webhooks only.
         */
        get: operations["AdminListAlerts"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/alerts/{alert_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetAlert
         * @description One alert with its deliveries; for an actor with a tenant, deliveries to its own webhooks.
         */
        get: operations["AdminGetAlert"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/alias_use/{alias}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * AliasUse
         * @description The use of each model or version that served requests for an alias, whether or not the alias exists still.
         */
        get: operations["AdminGetAliasUse"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/aliases": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListAliases
         * @description The aliases in force, by name: those set by operators, and those of laneway.toml under other names.
         */
        get: operations["AdminListAliases"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/aliases/{alias}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetAlias
         * @description One alias in force.
         */
        get: operations["AdminGetAlias"];
        /**
         * SetAlias
         * @description Make or replace an alias; it takes precedence over laneway.toml. Every gateway applies it within a second.
         */
        put: operations["AdminSetAlias"];
        post?: never;
        /**
         * RemoveAlias
         * @description Remove an alias. An alias of this name in laneway.toml applies again.
         */
        delete: operations["AdminRemoveAlias"];
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
        /**
         * AuditFindings
         * @description Compute every sum of the ledger again and list the differences.
         */
        get: operations["AdminGetAuditFindings"];
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
        /**
         * ListAuditLog
         * @description Administrative writes that match every given value, with start_time ≤ at < end_time.
         */
        get: operations["AdminListAuditLog"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/audit_log/{line_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetAuditLine
         * @description One line of the audit log, by its id.
         */
        get: operations["AdminGetAuditLine"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/batches": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListBatches
         * @description Batches with their progress. `search`: part of the id of a batch or of one of its files.
         */
        get: operations["AdminListBatches"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/batches/{batch_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetBatch
         * @description One batch, also after its tenant has deleted it.
         */
        get: operations["AdminGetBatch"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/batches/{batch_id}/cancel": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * CancelBatch
         * @description End a batch early. Lines that run are aborted and not billed; the outputs so far remain.
         */
        post: operations["AdminCancelBatch"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/billing_profiles": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListProfiles
         * @description The billing profiles of all tenants that are not archived, also of tenants whose profile was never set.
         */
        get: operations["AdminListBillingProfiles"];
        put?: never;
        post?: never;
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
        /**
         * ListBudgets
         * @description Budgets with the used, held and remaining amounts of their present windows, and a projection.
         */
        get: operations["AdminListBudgets"];
        put?: never;
        /**
         * SetBudget
         * @description Make a budget or change it. It applies to the next request.
         */
        post: operations["AdminSetBudget"];
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
        /**
         * GetBudget
         * @description One budget that is enforced, with the used, held and remaining amounts of its present window.
         */
        get: operations["AdminGetBudget"];
        put?: never;
        post?: never;
        /**
         * RemoveBudget
         * @description Stop enforcing a budget.
         */
        delete: operations["AdminRemoveBudget"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/budgets/{budget_id}/end_users": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListEndUsers
         * @description The end users of a budget for each end user, in its present window; with `end_user`, this end user alone. An
         *     end user beyond the limit of end users has the shared budget.
         */
        get: operations["AdminListEndUserBudgets"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/connectors": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListConnectors
         * @description The connectors of laneway.toml and connectors that have run, with their waiting and stuck amounts, the next retry
         *     and the last error.
         */
        get: operations["AdminListConnectors"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/connectors/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetConnector
         * @description One connector of laneway.toml, or that has run, by its name.
         */
        get: operations["AdminGetConnector"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/connectors/{name}/release": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * ReleaseConnector
         * @description Send a connector's stuck events again, with their identifiers and amounts. First check that the other system
         *     does not have the events: it may have forgotten the identifiers.
         */
        post: operations["AdminReleaseConnector"];
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
        /**
         * ListCorrections
         * @description Corrections in the order in which they were made.
         */
        get: operations["AdminListCorrections"];
        put?: never;
        /**
         * MakeCorrection
         * @description Add a correction. It counts in the period of the corrected usage while this period is open, otherwise in the
         *     current period. Settled usage does not change, and budgets do not count corrections.
         */
        post: operations["AdminMakeCorrection"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/corrections/{correction_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetCorrection
         * @description One correction, and the credit note of a credit.
         */
        get: operations["AdminGetCorrection"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/credits": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * MakeCredit
         * @description Credit a tenant, with a numbered credit note. It is a correction of `-picos`, and a line of its month's
         *     invoice.
         */
        post: operations["AdminMakeCredit"];
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
        /**
         * EngineStatus
         * @description The status of the engine now.
         */
        get: operations["AdminGetEngineStatus"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/engine/live": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * EngineLive
         * @description Watch the engine that is named `engine`, by default the first ready one: an event `engine` once a second; an
         *     event `away` with the reason when the engine is unavailable, and comments until it is back. A slow reader misses
         *     events. The stream ends with the caller's key or session.
         */
        get: operations["AdminStreamEngine"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/engines": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListEngines
         * @description The engines of this gateway's roster: state, load and what each one serves.
         */
        get: operations["AdminListEngines"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/engines/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetEngine
         * @description One engine of this gateway's roster by its name.
         */
        get: operations["AdminGetEngine"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/engines/{name}/drain": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * DrainEngine
         * @description Drain one engine, or let it serve again. Every gateway sees it in the engine's next heartbeat; its running
         *     requests end there. A restarted engine serves.
         */
        post: operations["AdminDrainEngine"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/error_rates": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListErrorRates
         * @description Refused and failed requests by code in UTC hours or days, beside the settled requests. start_time and end_time
         *     are rounded outwards to whole buckets, at most 400; by default the last 24 hours or 30 days. Requests with an
         *     unknown key are not counted here, but in the metric laneway_requests_refused_total.
         */
        get: operations["AdminListErrorRates"];
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
        /**
         * ListExports
         * @description Exports with their progress.
         */
        get: operations["AdminListExports"];
        put?: never;
        /**
         * CreateExport
         * @description Order an export. Exports of a closed month are identical; an export of an open month has the usage so far.
         */
        post: operations["AdminCreateExport"];
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
        /**
         * GetExport
         * @description One export.
         */
        get: operations["AdminGetExport"];
        put?: never;
        post?: never;
        /**
         * EndExport
         * @description Cancel an export, or delete the file of a completed one.
         */
        delete: operations["AdminEndExport"];
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
        /**
         * Download
         * @description The file of a completed export.
         */
        get: operations["AdminDownloadExport"];
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
        /**
         * DownloadManifest
         * @description The manifest of a completed export: hash, rows, control totals, and the part of the ledger that it covers.
         */
        get: operations["AdminDownloadExportManifest"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/files": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListFiles
         * @description Files of batches that are neither deleted nor expired.
         */
        get: operations["AdminListFiles"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/files/{file_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetFile
         * @description One file, without its content.
         */
        get: operations["AdminGetFile"];
        put?: never;
        post?: never;
        /**
         * DeleteFile
         * @description Delete a file. A batch that uses the file is not affected.
         */
        delete: operations["AdminDeleteFile"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/files/{file_id}/content": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetFileContent
         * @description The content of a file, for the tenant's own people only. Raises NotPermitted for an operator.
         */
        get: operations["AdminGetFileContent"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/health": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * HealthReport
         * @description Check every part that this gateway needs now. A part whose check takes over two seconds is reported as down.
         */
        get: operations["AdminGetHealth"];
        put?: never;
        post?: never;
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
        /**
         * ListInvoices
         * @description Invoices, of all tenants or of one.
         */
        get: operations["AdminListInvoices"];
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
        /**
         * GetInvoice
         * @description One invoice, by its id or number, with its lines: usage by model or adapter, tier, meter and price, then
         *     corrections.
         */
        get: operations["AdminGetInvoice"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/invoices/{invoice_id}/payments": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * RecordPayment
         * @description Record an amount received for an invoice, by its id or number. All payments together are from 0 to its total.
         */
        post: operations["AdminRecordPayment"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/issuer": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetIssuer
         * @description The issuer of the next documents: the settings issuer_…, …_series and payment_days of [billing] in
         *     laneway.toml.
         */
        get: operations["AdminGetIssuer"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/keys": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListKeys
         * @description Keys without their secrets, revoked ones too. Every given value must match. `project` is an id. The status
         *     `expiring` means an active key that expires within 14 days.
         */
        get: operations["AdminListKeys"];
        put?: never;
        /**
         * CreateKey
         * @description Make a key. Only this answer contains its secret.
         */
        post: operations["AdminCreateKey"];
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
        /**
         * GetKey
         * @description One key, without its secret.
         */
        get: operations["AdminGetKey"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        /**
         * ChangeKey
         * @description Change a key. Every gateway applies it within a second.
         */
        patch: operations["AdminChangeKey"];
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
        /**
         * RevokeKey
         * @description Revoke a key. Every gateway refuses it within a second.
         */
        post: operations["AdminRevokeKey"];
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
        /**
         * RotateKey
         * @description Make a key that replaces this one, which expires after `overlap_s`. Both share the key's own budgets and rate
         *     limits.
         */
        post: operations["AdminRotateKey"];
        delete?: never;
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
        /**
         * ListLimits
         * @description Tenants and keys with limits of their own, of all tenants or of one.
         */
        get: operations["AdminListLimits"];
        put?: never;
        /**
         * SetLimits
         * @description Set the rate limits of a tenant or a key, and the quotas of a tenant. Every gateway applies rate limits
         *     within a second, and quotas at once.
         */
        post: operations["AdminSetLimits"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/limits/defaults": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * DefaultLimits
         * @description The configured limits, which apply where no limit is set.
         */
        get: operations["AdminGetDefaultLimits"];
        put?: never;
        post?: never;
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
        /**
         * GetLimits
         * @description The limits of one tenant or key, by their id.
         */
        get: operations["AdminGetLimits"];
        put?: never;
        post?: never;
        /**
         * RemoveLimits
         * @description Apply the configured limits again.
         */
        delete: operations["AdminRemoveLimits"];
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
        /**
         * TierMargins
         * @description The revenue of each tier in a month (by default the last whole month) and the cost of its device time. Time lost
         *     by a preemption is accounted to the tier that caused it.
         */
        get: operations["AdminGetMargins"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/models": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListBaseModels
         * @description All base models, removed ones too, and where the weights of each model and adapter are in the engine that is
         *     named `engine`, by default in the first ready one.
         */
        get: operations["AdminListBaseModels"];
        put?: never;
        /**
         * AddModel
         * @description Add a base model. The gateway answers after the engine has checked the model's files: within seconds for most
         *     models, within five minutes at most. The same request can be repeated. The model needs a price first: POST
         *     /v1/admin/prices with `ahead`.
         */
        post: operations["AdminAddModel"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/models/{model}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetBaseModel
         * @description One base model by its name, which may contain slashes.
         */
        get: operations["AdminGetBaseModel"];
        put?: never;
        post?: never;
        /**
         * RemoveModel
         * @description Stop serving a model and its adapters. Running requests finish: until then `state` is draining. The request
         *     can be repeated.
         */
        delete: operations["AdminRemoveModel"];
        options?: never;
        head?: never;
        /**
         * ChangeModel
         * @description Change which tenants may call a model, whether its weights are pinned, its fallbacks, and the limit of output
         *     tokens for requests without one.
         */
        patch: operations["AdminChangeModel"];
        trace?: never;
    };
    "/v1/admin/models/{model}/restore": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * RestoreModel
         * @description Serve a removed model and its adapters again. The gateway answers after the engine has the model.
         */
        post: operations["AdminRestoreModel"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/overview": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Overview
         * @description Whether the gateway is up, the tightest budgets and when they run out, today's usage, and what needs attention;
         *     for an actor with a tenant, of this tenant only. `run_out_at` is what is left divided by the average rate of the
         *     last seven days' roll-ups, and null if that lies beyond the budget's window. A tier needs attention if fewer than 99
         *     % of its requests of the last hour had their first token within their target, or if a request has waited in the
         *     engine's queue for longer than its target. Refusals need attention if at least 5 % of the requests of the last whole
         *     hour were refused, failures if at least 1 % failed.
         */
        get: operations["AdminGetOverview"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/people": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListPeople
         * @description The people who have signed in, those without a role too.
         */
        get: operations["AdminListPeople"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/people/{person_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetPerson
         * @description One person, by id.
         */
        get: operations["AdminGetPerson"];
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
        /**
         * ListPeriods
         * @description Billing periods by their start. A tenant's first period is that of its first usage.
         */
        get: operations["AdminListPeriods"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/periods/closable": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListClosable
         * @description The open periods of a month with their amounts so far, and the reason why a period cannot be closed.
         */
        get: operations["AdminListClosablePeriods"];
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
        /**
         * ClosePeriod
         * @description Close a month permanently and make its invoice. Usage that is settled later belongs to the next month.
         */
        post: operations["AdminClosePeriod"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/periods/close_all": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * CloseAll
         * @description Close a month permanently for all tenants, CLOSED_AT_ONCE periods a request. A period that cannot be closed
         *     remains open; all others are closed.
         */
        post: operations["AdminCloseMonth"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/periods/{period_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetPeriod
         * @description One billing period, by id.
         */
        get: operations["AdminGetPeriod"];
        put?: never;
        post?: never;
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
        /**
         * ListPrices
         * @description The newest thousand price versions, by `effective_from` in descending order.
         */
        get: operations["AdminListPrices"];
        put?: never;
        /**
         * PublishPrice
         * @description Publish a price version. A version never changes; requests have the price of the newest one in force.
         */
        post: operations["AdminPublishPrice"];
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
        /**
         * PreviewPrice
         * @description The cost of a month's usage at these prices, by tenant and in total. Nothing is published.
         */
        post: operations["AdminPreviewPrice"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/prices/{price_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetPrice
         * @description One price version, by id.
         */
        get: operations["AdminGetPrice"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/projects": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListProjects
         * @description Projects, of all tenants or of one.
         */
        get: operations["AdminListProjects"];
        put?: never;
        /**
         * CreateProject
         * @description Make a project of a tenant.
         */
        post: operations["AdminCreateProject"];
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
        /**
         * GetProject
         * @description One project, by id.
         */
        get: operations["AdminGetProject"];
        put?: never;
        post?: never;
        /**
         * ArchiveProject
         * @description Archive a project without usable keys: it takes no key, and lists leave it out. It keeps its usage and name.
         *     Archiving it again changes nothing.
         */
        delete: operations["AdminArchiveProject"];
        options?: never;
        head?: never;
        /**
         * ChangeProject
         * @description Change a project.
         */
        patch: operations["AdminChangeProject"];
        trace?: never;
    };
    "/v1/admin/projects/{project_id}/restore": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * RestoreProject
         * @description End the archiving of a project.
         */
        post: operations["AdminRestoreProject"];
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
        /**
         * ListReconciliations
         * @description Results of reconciliations, newest first. Gateways reconcile every minute.
         */
        get: operations["AdminListReconciliations"];
        put?: never;
        /**
         * ReconcileNow
         * @description Reconcile a month, or the whole ledger, now. Every row of it is read.
         */
        post: operations["AdminReconcileBooks"];
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
        /**
         * ReconciliationStanding
         * @description The open findings: those of the last whole reconciliation and of all since. Sound books have none.
         */
        get: operations["AdminGetOpenImbalances"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/reconciliations/{number}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetReconciliation
         * @description One stored result of a reconciliation, by its number.
         */
        get: operations["AdminGetReconciliation"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/requests": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListRequests
         * @description Running requests, then ended ones, newest first; refused and failed ones too. Every given value must match:
         *     `search` is a whole request id, `ending` a value as in the rows (stop, length, client_left, …), `adapter` an id,
         *     `code` of an error (rate_limit_exceeded, …); start_time ≤ end of the request < end_time. `batch`: the id of a batch,
         *     whose settled lines are listed; `any`: lines of all batches, also those that run; `none`: all requests but these. Of
         *     one tenant's refused and failed requests, at most 10 a second are listed; `/v1/admin/error_rates` counts all.
         *     `min_ttft_s`: settled requests whose first token took at least this time. With `min_ttft_s`, or with `batch` `any`
         *     or `none`, and without start_time, requests of the last 7 days are listed. Prompts and answers are not stored.
         */
        get: operations["AdminListRequests"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/requests/{request_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetRequest
         * @description One request with its hold, its ledger entries and its corrections, the error that its caller got, and why it was
         *     slow. Of a request that was refused or failed before its hold, the error.
         */
        get: operations["AdminGetRequest"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/search": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Search
         * @description Tenants, projects, keys, requests, invoices, adapters, models, aliases, batches and files that `q` finds, for an
         *     actor with a tenant only of this tenant. A request, a batch and a file are found by their whole id.
         */
        get: operations["AdminSearch"];
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
        /**
         * GetSession
         * @description The session of the cookie.
         */
        get: operations["AdminGetSession"];
        put?: never;
        /**
         * SignIn
         * @description Begin a session with an admin key, and end the session of the request's cookie. The answer sets the
         *     cookie.
         */
        post: operations["AdminSignIn"];
        /**
         * SignOut
         * @description End the session and delete its cookie.
         */
        delete: operations["AdminSignOut"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/session/backchannel_logout": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * ProviderLogsOut
         * @description The provider ends the sessions that a logout token names (OpenID Connect Back-Channel Logout 1.0).
         */
        post: operations["AdminEndProviderSessions"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/session/options": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * SignInOptions
         * @description How a person can sign in. Needs no key.
         */
        get: operations["AdminGetSignInOptions"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/session/totp": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Enrol
         * @description Make a secret for the session's key. Sign-ins need no code before it is confirmed.
         */
        post: operations["AdminEnrolTotp"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/session/totp/confirm": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Confirm
         * @description Show that the app has the secret. From then on sign-ins with the key need a code.
         */
        post: operations["AdminConfirmTotp"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/session/totp/remove": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Remove
         * @description Remove the secret: sign-ins with the key need no code any more.
         */
        post: operations["AdminRemoveTotp"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/sla": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * SlaReport
         * @description The requests within the targets for the first token and between tokens, each against the targets in force at its
         *     first token: exact counts and percentiles by day. Without a tenant: all tenants together; for an actor
         *     with a tenant, its own.
         */
        get: operations["AdminGetSlaReport"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/sla/export": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ExportSla
         * @description The report of /v1/admin/sla as a file: csv has a line for each day of each group, json is the report itself.
         */
        get: operations["AdminExportSlaReport"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/tenants": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListTenants
         * @description All tenants; for an actor with a tenant, only this one.
         */
        get: operations["AdminListTenants"];
        put?: never;
        /**
         * CreateTenant
         * @description Make a tenant.
         */
        post: operations["AdminCreateTenant"];
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
        /**
         * GetTenant
         * @description One tenant, by id or slug.
         */
        get: operations["AdminGetTenant"];
        put?: never;
        post?: never;
        /**
         * ArchiveTenant
         * @description Archive a tenant: its keys are refused, and lists leave it out. It keeps its usage, invoices and slug.
         *     Archiving it again changes nothing.
         */
        delete: operations["AdminArchiveTenant"];
        options?: never;
        head?: never;
        /**
         * ChangeTenant
         * @description Change, suspend or resume a tenant.
         */
        patch: operations["AdminChangeTenant"];
        trace?: never;
    };
    "/v1/admin/tenants/{tenant_id}/billing_profile": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetProfile
         * @description The name, address, taxes and terms of a tenant (id or slug) on its next documents.
         */
        get: operations["AdminGetBillingProfile"];
        /**
         * SetProfile
         * @description Replace a tenant's billing profile. Issued documents do not change.
         */
        put: operations["AdminSetBillingProfile"];
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/tenants/{tenant_id}/restore": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * RestoreTenant
         * @description End the archiving of a tenant: it is active, and its keys work again.
         */
        post: operations["AdminRestoreTenant"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/tiers": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListTiers
         * @description The tiers from high to low: each one's settings, and how often its target for the first token was met.
         */
        get: operations["AdminListTiers"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/tiers/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetTier
         * @description One tier by its name, with its settings and its attainment.
         */
        get: operations["AdminGetTier"];
        put?: never;
        post?: never;
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
        /**
         * UsageTotals
         * @description Sums over settled requests that match every given value, with start_time ≤ finished < end_time. Cost in picos.
         *     `batch`: `any` selects lines of batches, `none` all other requests.
         */
        get: operations["AdminGetUsage"];
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
        /**
         * UsageRequests
         * @description Settled requests, one by one, in the ledger's order. `batch`: as in the sums.
         */
        get: operations["AdminListUsage"];
        put?: never;
        post?: never;
        delete?: never;
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
        /**
         * ListWebhooks
         * @description Webhooks without their secrets, oldest first. `tenant`: those for the alerts of this tenant alone.
         */
        get: operations["AdminListWebhooks"];
        put?: never;
        /**
         * CreateWebhook
         * @description Make a webhook. Only this answer contains the secret that deliveries are signed with.
         */
        post: operations["AdminCreateWebhook"];
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
        /**
         * GetWebhook
         * @description One webhook, without its secrets.
         */
        get: operations["AdminGetWebhook"];
        put?: never;
        post?: never;
        /**
         * RemoveWebhook
         * @description Remove a webhook; pending deliveries to it end.
         */
        delete: operations["AdminRemoveWebhook"];
        options?: never;
        head?: never;
        /**
         * ChangeWebhook
         * @description Change the URL or the events of a webhook, pause it, or resume it.
         */
        patch: operations["AdminChangeWebhook"];
        trace?: never;
    };
    "/v1/admin/webhooks/{webhook_id}/rotate_secret": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * RotateWebhookSecret
         * @description Sign with a new secret from now on. Only this answer contains it.
         */
        post: operations["AdminRotateWebhookSecret"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/webhooks/{webhook_id}/test": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * TestWebhook
         * @description Send one signed test event now, also to a paused webhook, and answer with the result.
         */
        post: operations["AdminTestWebhook"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/batches": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListBatches
         * @description The tenant's batches, the newest first.
         */
        get: operations["ListBatches"];
        put?: never;
        /**
         * CreateBatch
         * @description Create a batch of an uploaded file. With an Idempotency-Key a repeated call gets the same batch, for a day.
         *     Counts as a request under the limits, as every endpoint of batches does; its lines do not.
         */
        post: operations["CreateBatch"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/batches/{batch}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetBatch
         * @description A batch, with its counts and usage so far.
         */
        get: operations["GetBatch"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/batches/{batch}/cancel": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * CancelBatch
         * @description End a batch early. Lines that run are aborted and not billed; the outputs so far remain.
         */
        post: operations["CancelBatch"];
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
        /**
         * OwnBudgets
         * @description The used, held and remaining amounts of each budget, and when it resets (Unix seconds; null: never).
         */
        get: operations["ListBudgets"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/chat/completions": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * ChatCompletions
         * @description Create a chat completion.
         */
        post: operations["CreateChatCompletion"];
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
        /**
         * Completions
         * @description Create completions of one or several prompts.
         */
        post: operations["CreateCompletion"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/conversations": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * CreateConversation
         * @description Create a conversation. Counts as a request under the limits, as every endpoint of conversations does.
         */
        post: operations["CreateConversation"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/conversations/{conversation}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetConversation
         * @description A conversation, without its items.
         */
        get: operations["GetConversation"];
        put?: never;
        /**
         * UpdateConversation
         * @description Replace the metadata of a conversation.
         */
        post: operations["UpdateConversation"];
        /**
         * DeleteConversation
         * @description Delete a conversation and its items. Responses that were made in it remain.
         */
        delete: operations["DeleteConversation"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/conversations/{conversation}/items": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListItems
         * @description The items of a conversation.
         */
        get: operations["ListConversationItems"];
        put?: never;
        /**
         * AddItems
         * @description Append items to a conversation. Answers with them, as they are stored.
         */
        post: operations["AddConversationItems"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/conversations/{conversation}/items/{item}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetItem
         * @description An item of a conversation.
         */
        get: operations["GetConversationItem"];
        put?: never;
        post?: never;
        /**
         * DeleteItem
         * @description Delete an item of a conversation. Answers with the conversation.
         */
        delete: operations["DeleteConversationItem"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/detokenize": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Detokenize
         * @description The text of token ids, special tokens included. Free.
         */
        post: operations["Detokenize"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/embeddings": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Embeddings
         * @description Make a vector of each input, by pooling the model's last hidden states.
         */
        post: operations["CreateEmbeddings"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/files": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListFiles
         * @description The tenant's files, in the order of their creation.
         */
        get: operations["ListFiles"];
        put?: never;
        /**
         * UploadFile
         * @description Upload a file for a batch, as a form with `purpose` and `file`. Counts as a request under the limits, as every
         *     endpoint of files does.
         */
        post: operations["UploadFile"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/files/{file}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetFile
         * @description A file, without its content.
         */
        get: operations["GetFile"];
        put?: never;
        post?: never;
        /**
         * DeleteFile
         * @description Delete a file. A running batch still reads the file.
         */
        delete: operations["DeleteFile"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/files/{file}/content": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetFileContent
         * @description The content of a file, as it was uploaded or written by a batch.
         */
        get: operations["GetFileContent"];
        put?: never;
        post?: never;
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
        /**
         * Messages
         * @description Create a message.
         */
        post: operations["CreateMessage"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/messages/batches": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListMessageBatches
         * @description The tenant's batches, the newest first. `after_id`: the page of older batches that begins after it; `before_id`:
         *     the page of newer batches that ends before it.
         */
        get: operations["ListMessageBatches"];
        put?: never;
        /**
         * CreateMessageBatch
         * @description Create a batch of at most 100,000 requests or 256 MB. With an Idempotency-Key a repeated call gets the same
         *     batch, for a day. Counts as a request under the limits, as every endpoint of batches does; its requests do not.
         */
        post: operations["CreateMessageBatch"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/messages/batches/{batch}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetMessageBatch
         * @description A batch, with its counts.
         */
        get: operations["GetMessageBatch"];
        put?: never;
        post?: never;
        /**
         * DeleteMessageBatch
         * @description Delete an ended batch and its results.
         */
        delete: operations["DeleteMessageBatch"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/messages/batches/{batch}/cancel": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * CancelMessageBatch
         * @description End a batch early. Requests that run are aborted and not billed; the results so far remain.
         */
        post: operations["CancelMessageBatch"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/messages/batches/{batch}/results": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetMessageBatchResults
         * @description The results of an ended batch, as lines of JSON in any order. Each names its request by `custom_id`.
         */
        get: operations["GetMessageBatchResults"];
        put?: never;
        post?: never;
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
        /**
         * CountTokens
         * @description Count the tokens of a prompt, as it would be charged when nothing of it is cached. Free.
         */
        post: operations["CountTokens"];
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
        /**
         * ListModels
         * @description List the base models, adapters and aliases that the key's tenant may use. With the header `anthropic-version`
         *     the answer is a page in Anthropic's shape, by `limit`, `after_id` and `before_id`.
         */
        get: operations["ListModels"];
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
        /**
         * GetModel
         * @description One model, adapter or alias that the key's tenant may use. With the header `anthropic-version` in Anthropic's
         *     shape.
         */
        get: operations["GetModel"];
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
        /**
         * OrganizationCosts
         * @description The cost of usage and corrections by group and currency, in days of UTC or in one bucket (`all`).
         */
        get: operations["GetOrganizationCosts"];
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
        /**
         * OrganizationUsage
         * @description Settled requests by group, in buckets of UTC; `all` is one bucket of the whole time. Currencies are separate
         *     groups. Arrays are repeated parameters, with or without []; an empty value matches rows without such a name, for
         *     example without an adapter. `tags`: NAME=VALUE, one value of each name must match; NAME= matches usage without the
         *     tag.
         */
        get: operations["GetOrganizationUsage"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/rerank": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Rerank
         * @description Order documents by the cosine of their embedding and the query's.
         */
        post: operations["Rerank"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/responses": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Responses
         * @description Create a response.
         */
        post: operations["CreateResponse"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/responses/compact": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Compact
         * @description Replace a conversation by its user messages and a summary that the model writes. Billed as an answer.
         */
        post: operations["CompactConversation"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/responses/input_tokens": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * InputTokens
         * @description Count the tokens of a response's prompt. Free.
         */
        post: operations["CountInputTokens"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/responses/{response}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * GetResponse
         * @description A stored response. A response in the background may be streamed, from the event after `starting_after` on.
         */
        get: operations["GetResponse"];
        put?: never;
        post?: never;
        /**
         * DeleteResponse
         * @description Delete a stored response. Responses that continue it can then not be continued.
         */
        delete: operations["DeleteResponse"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/responses/{response}/cancel": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * CancelResponse
         * @description Cancel a response in the background. Its text so far is stored and billed. A response that has ended is returned
         *     unchanged.
         */
        post: operations["CancelResponse"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/responses/{response}/input_items": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * ListInputItems
         * @description The input of a stored response.
         */
        get: operations["ListInputItems"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/score": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Score
         * @description The cosine of the embeddings of two texts, for each pair.
         */
        post: operations["Score"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/tokenize": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Tokenize
         * @description The token ids of a text or of a conversation, as a completion with it is billed. Free.
         */
        post: operations["Tokenize"];
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
        /**
         * OwnUsage
         * @description The usage of this key.
         */
        get: operations["GetUsage"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/version": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Version
         * @description The version of this gateway.
         */
        get: operations["GetVersion"];
        put?: never;
        post?: never;
        delete?: never;
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
            active: boolean;
            base_model: string;
            created_at: number;
            digest: string;
            id: string;
            name: string;
            notes: string | null;
            pinned: boolean;
            shared: string[];
            tenant_id: string | null;
            version: number;
        };
        /**
         * AdapterChange
         * @example {
         *       "shared": [
         *         "northwind"
         *       ]
         *     }
         */
        AdapterChange: {
            notes?: string | null;
            pinned?: boolean | null;
            shared?: string[] | null;
        };
        /** AddedAdapterView */
        AddedAdapterView: {
            active: boolean;
            added: components["schemas"]["Version"];
            base_model: string;
            created_at: number;
            digest: string;
            id: string;
            name: string;
            notes: string | null;
            pinned: boolean;
            shared: string[];
            tenant_id: string | null;
            version: number;
        };
        /**
         * AddedModel
         * @example {
         *       "name": "laneway-tiny"
         *     }
         */
        AddedModel: {
            context_tokens?: number | null;
            /** @enum {null|string} */
            dtype?: "float32" | "bfloat16" | "float16" | null;
            fallbacks?: string[];
            /** @enum {null|string} */
            kv_dtype?: "auto" | "fp8" | null;
            max_tokens_default?: number | null;
            /** @example llama-3.1-8b */
            name: string;
            path?: string | null;
            pinned?: boolean;
            /** @enum {null|string} */
            quantize?: "none" | "fp8" | "int8" | "int4" | null;
            tenants?: string[] | null;
        };
        /** Alias */
        Alias: {
            /** @default true */
            active: boolean;
            /** @default false */
            cheapest: boolean;
            created_at?: number | null;
            /** @default [] */
            fallbacks: string[];
            models: components["schemas"]["TargetSection"][];
            name: string;
            /**
             * @default row
             * @enum {string}
             */
            source: "configuration" | "row";
            tenants?: string[] | null;
        };
        /**
         * AliasSetting
         * @example {
         *       "models": [
         *         {
         *           "model": "my-model",
         *           "weight": 95
         *         },
         *         {
         *           "model": "laneway-tiny",
         *           "weight": 5
         *         }
         *       ]
         *     }
         */
        AliasSetting: {
            /** @default true */
            active: boolean;
            /** @default false */
            cheapest: boolean;
            fallbacks?: string[];
            models: components["schemas"]["TargetSection"][];
            tenants?: string[] | null;
        };
        /** AllowanceView */
        AllowanceView: {
            concurrency: number;
            requests_per_minute: number;
            tokens_per_minute: number;
        };
        /**
         * AllowedResponseTools
         * @description The answer may call these tools alone.
         */
        AllowedResponseTools: {
            /** @enum {unknown} */
            mode: "auto" | "required";
            tools: (components["schemas"]["ChosenFunction"] | components["schemas"]["ChosenCustom"])[];
            /** @enum {unknown} */
            type: "allowed_tools";
        };
        /** AllowedSpec */
        AllowedSpec: {
            /** @enum {unknown} */
            mode: "auto" | "required";
            tools: (components["schemas"]["NamedFunction"] | components["schemas"]["NamedCustom"])[];
        };
        /**
         * AllowedTools
         * @description The answer may call these tools alone.
         */
        AllowedTools: {
            allowed_tools: components["schemas"]["AllowedSpec"];
            /** @enum {unknown} */
            type: "allowed_tools";
        };
        /**
         * Alternative
         * @description A token. `bytes` is its exact UTF-8, even if the token is a part of a character and `token` cannot show it.
         */
        Alternative: {
            bytes: number[];
            logprob: number;
            token: string;
        };
        /** Amount */
        Amount: {
            currency: string;
            picos: number | bigint;
            value: number;
        };
        /** AnswerMessage */
        AnswerMessage: {
            /** @default [] */
            annotations: unknown[];
            content: string | null;
            reasoning?: string;
            reasoning_content?: string;
            /** @default null */
            refusal: null;
            /**
             * @default assistant
             * @enum {unknown}
             */
            role: "assistant";
            tool_calls?: components["schemas"]["AnsweredCall"][];
        };
        /**
         * AnsweredCall
         * @description A call of the answer: of a function, or of a custom tool.
         */
        AnsweredCall: {
            custom?: components["schemas"]["AnsweredCustom"];
            function?: components["schemas"]["AnsweredFunction"];
            id: string;
            /**
             * @default function
             * @enum {unknown}
             */
            type: "custom" | "function";
        };
        /** AnsweredCustom */
        AnsweredCustom: {
            input: string;
            name: string;
        };
        /** AnsweredFunction */
        AnsweredFunction: {
            arguments: string;
            name: string;
        };
        /** AnthropicDetail */
        AnthropicDetail: {
            message: string;
            type: string;
        };
        /**
         * AnthropicError
         * @description The body of an error answer on /v1/messages and below, and the data of an error event in a stream.
         */
        AnthropicError: {
            error: components["schemas"]["AnthropicDetail"];
            request_id: string;
            /** @enum {unknown} */
            type: "error";
        };
        /**
         * AnyInput
         * @description The input is any text.
         */
        AnyInput: {
            /** @enum {unknown} */
            type: "text";
        };
        /** ArmUse */
        ArmUse: {
            adapter: string | null;
            adapter_version: number | null;
            completion_tokens: number;
            cost_picos: {
                [key: string]: number | bigint;
            };
            device_s_per_token: number | null;
            failed: number;
            model: string;
            prompt_tokens: number;
            requests: number;
            ttft_p50_s: number | null;
            ttft_p95_s: number | null;
        };
        /** ArmsView */
        ArmsView: {
            data: components["schemas"]["ArmUse"][];
            start_time: number;
        };
        /**
         * AssistantMessage
         * @description Written by a client, or returned by Laneway before: SDKs send the empty fields of an answer back. `reasoning` and
         *         `reasoning_content` are two names of one text.
         */
        AssistantMessage: {
            /** @default null */
            annotations: unknown[] | null;
            /** @default null */
            audio: null;
            /** @default null */
            content: string | components["schemas"]["TextPart"][] | null;
            /** @default null */
            function_call: null;
            /** @default null */
            name: string | null;
            /** @default null */
            provider_specific_fields: Record<string, never> | null;
            /** @default null */
            reasoning: string | null;
            /** @default null */
            reasoning_content: string | null;
            /** @default null */
            refusal: null;
            /** @enum {unknown} */
            role: "assistant";
            /** @default null */
            tool_calls: (components["schemas"]["FunctionCall"] | components["schemas"]["CustomCall"])[] | null;
        };
        /** Attainment */
        Attainment: {
            late_s_max: number;
            refused_503: number;
            requests: number;
            share_within_target: number | null;
            start_time: number;
            ttft_p50_ms: number | null;
            ttft_p95_ms: number | null;
            ttft_p99_ms: number | null;
            /** @enum {string} */
            window: "5m" | "1h" | "24h";
            within_target: number;
        };
        /** Attention */
        Attention: {
            /** @enum {string} */
            kind: "engine" | "models" | "database" | "lease" | "journal" | "tiers" | "queue" | "books" | "budget" | "exports" | "webhooks" | "keys" | "refusals" | "failures" | "redis" | "gateways" | "workers" | "disk" | "certificates" | "drain" | "connectors" | "traces";
            link: string;
            message: string;
            /** @enum {string} */
            severity: "warning" | "critical";
        };
        /** AuditLineView */
        AuditLineView: {
            action: string;
            actor: string;
            actor_name: string | null;
            after: unknown;
            at: number;
            before: unknown;
            id: number;
            object_id: string;
            object_name: string | null;
            request_id: string | null;
            tenant_id: string | null;
        };
        /** AuditView */
        AuditView: {
            findings: components["schemas"]["Findings"];
            sound: boolean;
        };
        /**
         * AwayEvent
         * @description The data of an event `away`: the engine is unavailable.
         */
        AwayEvent: {
            at: number;
            reason: string;
        };
        /** BatchErrorList */
        BatchErrorList: {
            data: components["schemas"]["BatchErrorObject"][];
            /**
             * @default list
             * @constant
             */
            object: "list";
        };
        /** BatchErrorObject */
        BatchErrorObject: {
            code: string;
            line?: number | null;
            message: string;
            param?: string | null;
        };
        /** BatchInputDetails */
        BatchInputDetails: {
            cached_tokens: number;
        };
        /** BatchList */
        BatchList: {
            data: components["schemas"]["BatchObject"][];
            first_id: string | null;
            has_more: boolean;
            last_id: string | null;
            /**
             * @default list
             * @constant
             */
            object: "list";
        };
        /** BatchObject */
        BatchObject: {
            cancelled_at: number | null;
            cancelling_at: number | null;
            completed_at: number | null;
            completion_window: string;
            created_at: number;
            endpoint: string;
            error_file_id: string | null;
            errors: components["schemas"]["BatchErrorList"] | null;
            expired_at: number | null;
            expires_at: number;
            failed_at: number | null;
            finalizing_at: number | null;
            id: string;
            in_progress_at: number | null;
            input_file_id: string;
            metadata: {
                [key: string]: string;
            } | null;
            /**
             * @default batch
             * @constant
             */
            object: "batch";
            output_file_id: string | null;
            request_counts: components["schemas"]["RequestCounts"];
            status: string;
            usage: components["schemas"]["BatchUsage"];
        };
        /** BatchOutputDetails */
        BatchOutputDetails: {
            reasoning_tokens: number;
        };
        /** BatchProblem */
        BatchProblem: {
            code: string;
            line: number | null;
            message: string | null;
            param: string | null;
        };
        /**
         * BatchRequest
         * @description The body of a new batch. `completion_window`: 1h to 24h.
         * @example {
         *       "completion_window": "24h",
         *       "endpoint": "/v1/chat/completions",
         *       "input_file_id": "file-0123456789abcdef0123456789abcdef"
         *     }
         */
        BatchRequest: {
            completion_window: string;
            endpoint: string;
            input_file_id: string;
            /** @default null */
            metadata: {
                [key: string]: string;
            } | null;
            /** @default null */
            output_expires_after: components["schemas"]["OutputExpiry"] | null;
        };
        /** BatchUsage */
        BatchUsage: {
            input_tokens: number;
            input_tokens_details: components["schemas"]["BatchInputDetails"];
            output_tokens: number;
            output_tokens_details: components["schemas"]["BatchOutputDetails"];
            total_tokens: number;
        };
        /** BatchView */
        BatchView: {
            cached_tokens: number;
            cancelling_at: number | null;
            completion_tokens: number;
            completion_window: string;
            cost_picos: number | bigint;
            created_at: number;
            currency: string;
            deadline_at: number;
            deleted: boolean;
            /** @enum {string} */
            dialect: "openai" | "anthropic";
            ended_at: number | null;
            endpoint: string;
            error_file_id: string | null;
            errors: {
                [key: string]: number;
            };
            expected_end_at: number | null;
            failed: number;
            filenames: {
                [key: string]: string;
            };
            finalizing_at: number | null;
            id: string;
            in_progress_at: number | null;
            input_file_id: string;
            key_id: string;
            lines: number;
            lines_per_s: number;
            metadata: {
                [key: string]: string;
            } | null;
            output_file_id: string | null;
            problems: components["schemas"]["BatchProblem"][];
            prompt_tokens: number;
            /** @enum {string} */
            status: "validating" | "in_progress" | "finalizing" | "completed" | "failed" | "expired" | "cancelling" | "cancelled";
            succeeded: number;
            tenant_id: string;
            unrun: number | null;
        };
        /**
         * BatchedMessage
         * @description A request of a batch. `custom_id`: 1 to 64 of A-Z, a-z, 0-9, '_' and '-', unique in the batch.
         */
        BatchedMessage: {
            custom_id: string;
            params: components["schemas"]["MessagesRequest"];
        };
        /** BillingProfileView */
        BillingProfileView: {
            accounts: {
                [key: string]: string;
            };
            address: string[];
            legal_name: string | null;
            payment_days: number | null;
            tax_id: string | null;
            taxes: components["schemas"]["Tax"][];
            tenant_id: string;
        };
        /** BlockDelta */
        BlockDelta: {
            delta: components["schemas"]["TextDelta"] | components["schemas"]["ThinkingDelta"] | components["schemas"]["SignatureDelta"] | components["schemas"]["InputJsonDelta"];
            /** @default 0 */
            index: number;
            /** @enum {unknown} */
            type: "content_block_delta";
        };
        /** BlockStart */
        BlockStart: {
            content_block: components["schemas"]["TextContent"] | components["schemas"]["ThinkingContent"] | components["schemas"]["ToolUseContent"];
            /** @default 0 */
            index: number;
            /** @enum {unknown} */
            type: "content_block_start";
        };
        /** BlockStop */
        BlockStop: {
            /** @default 0 */
            index: number;
            /** @enum {unknown} */
            type: "content_block_stop";
        };
        /**
         * BudgetSetting
         * @example {
         *       "limit_amount": 50000000000000,
         *       "period": "month",
         *       "tenant": "northwind",
         *       "unit": "money"
         *     }
         */
        BudgetSetting: {
            key_id?: string | null;
            /** @enum {null|string} */
            kind?: "hard" | "soft" | null;
            limit_amount: number | bigint;
            /** @default false */
            per_end_user: boolean;
            /** @enum {string} */
            period: "day" | "month" | "total";
            project?: string | null;
            tenant: string;
            thresholds?: number[] | null;
            /** @enum {string} */
            unit: "tokens" | "money";
        };
        /** BudgetView */
        BudgetView: {
            created_at: number;
            end_users: number | null;
            end_users_near: number | null;
            held: number | bigint;
            id: string;
            /** @enum {string} */
            kind: "hard" | "soft";
            left: number | bigint;
            limit_amount: number | bigint;
            per_end_user: boolean;
            /** @enum {string} */
            period: "day" | "month" | "total";
            resets_at: number | null;
            /** @enum {string} */
            scope: "tenant" | "project" | "key";
            scope_id: string;
            tenant_id: string;
            thresholds: number[];
            /** @enum {string} */
            unit: "tokens" | "money";
            used: number | bigint;
        };
        /**
         * CacheControl
         * @description A hint: every prompt is cached here, by its pages.
         */
        CacheControl: {
            /** @default null */
            scope: string | null;
            /** @default null */
            ttl: ("1h" | "5m") | null;
            /** @enum {unknown} */
            type: "ephemeral";
        };
        /**
         * CallDelta
         * @description Of a streamed call: the first has `id`, `type` and the name, later ones only new arguments.
         */
        CallDelta: {
            custom?: components["schemas"]["CustomDelta"];
            function?: components["schemas"]["FunctionDelta"];
            id?: string;
            index: number;
            /** @enum {unknown} */
            type?: "custom" | "function";
        };
        /** CalledCustom */
        CalledCustom: {
            input: string;
            name: string;
        };
        /** CalledFunction */
        CalledFunction: {
            arguments: string;
            name: string;
        };
        /**
         * ChangedModel
         * @example {
         *       "pinned": true
         *     }
         */
        ChangedModel: {
            fallbacks?: string[];
            max_tokens_default?: number | null;
            pinned?: boolean;
            tenants?: string[] | null;
        };
        /** ChatCompletion */
        ChatCompletion: {
            choices: components["schemas"]["Choice"][];
            created: number;
            id: string;
            model: string;
            /**
             * @default chat.completion
             * @enum {unknown}
             */
            object: "chat.completion";
            prompt_logprobs?: ({
                [key: string]: components["schemas"]["PromptLogprob"];
            } | null)[];
            service_tier: string;
            system_fingerprint: string;
            usage: components["schemas"]["Usage"];
        };
        /** ChatCompletionChunk */
        ChatCompletionChunk: {
            choices: components["schemas"]["ChunkChoice"][];
            created: number;
            id: string;
            model: string;
            /**
             * @default chat.completion.chunk
             * @enum {unknown}
             */
            object: "chat.completion.chunk";
            service_tier: string;
            system_fingerprint: string;
            usage?: components["schemas"]["Usage"] | null;
        };
        /**
         * ChatRequest
         * @description The body of a chat completion. A field without a type is not served: only its neutral values are accepted.
         * @example {
         *       "max_completion_tokens": 64,
         *       "messages": [
         *         {
         *           "content": "Name three rivers.",
         *           "role": "user"
         *         }
         *       ],
         *       "model": "my-model"
         *     }
         */
        ChatRequest: {
            /** @default null */
            add_generation_prompt: boolean | null;
            /**
             * @description The chat template adds the special tokens: only these values are accepted.
             * @default null
             */
            add_special_tokens: null | false;
            /**
             * @description A list of allowed tokens is not served; 'logit_bias' is: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            allowed_token_ids: null;
            /**
             * @description Input and output are text only: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            audio: null;
            /**
             * @description A list of bad words is not served; 'logit_bias' is: only these values are accepted.
             * @default null
             */
            bad_words: null | unknown[];
            /**
             * @description The model's own chat template is used: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            chat_template: null;
            /** @default null */
            chat_template_kwargs: Record<string, never> | null;
            /** @default null */
            continue_final_message: boolean | null;
            /**
             * @description Documents are not searched: only these values are accepted.
             * @default null
             */
            documents: null | unknown[];
            /**
             * @description An answer does not repeat its prompt: only these values are accepted.
             * @default null
             */
            echo: null | false;
            /** @default null */
            frequency_penalty: number | null;
            /**
             * @description 'tools' and 'tool_choice' are served in its place: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            function_call: null | "none" | "auto";
            /**
             * @description 'tools' and 'tool_choice' are served in its place: only these values are accepted.
             * @default null
             */
            functions: null | unknown[];
            /** @default null */
            guided_choice: string[] | null;
            /** @default null */
            guided_decoding_backend: string | null;
            /** @default null */
            guided_grammar: string | null;
            /** @default null */
            guided_json: (Record<string, never> | string) | null;
            /** @default null */
            guided_regex: string | null;
            /**
             * @description 'disable_any_whitespace' or the operator's setting bounds white space between JSON tokens: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            guided_whitespace_pattern: null;
            /** @default null */
            ignore_eos: boolean | null;
            /** @default null */
            include_reasoning: boolean | null;
            /**
             * @description A text ends before its stop sequence: only these values are accepted.
             * @default null
             */
            include_stop_str_in_output: null | false;
            /**
             * @description Beam search is not served: only these values are accepted.
             * @default null
             */
            length_penalty: null | 1;
            /** @default null */
            logit_bias: {
                [key: string]: number;
            } | null;
            /** @default null */
            logprobs: boolean | null;
            /** @default null */
            max_completion_tokens: number | null;
            /** @default null */
            max_reasoning_tokens: number | null;
            /** @default null */
            max_tokens: number | null;
            messages: (components["schemas"]["SystemMessage"] | components["schemas"]["DeveloperMessage"] | components["schemas"]["UserMessage"] | components["schemas"]["AssistantMessage"] | components["schemas"]["ToolMessage"])[];
            /** @default null */
            metadata: {
                [key: string]: string;
            } | null;
            /** @default null */
            min_p: number | null;
            /** @default null */
            min_tokens: number | null;
            /**
             * @description Input and output are text only: only these values are accepted.
             * @default null
             */
            modalities: null | "text"[];
            model: string;
            /**
             * @description Nothing is moderated: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            moderation: null;
            /** @default null */
            n: number | null;
            /** @default null */
            parallel_tool_calls: boolean | null;
            /**
             * @description Predicted outputs are not served: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            prediction: null;
            /** @default null */
            presence_penalty: number | null;
            /**
             * @description Requests are ordered by service tier; use 'service_tier': only these values are accepted.
             * @default null
             */
            priority: null | 0;
            /** @default null */
            prompt_cache_key: string | null;
            /** @default null */
            prompt_cache_options: Record<string, never> | null;
            /** @default null */
            prompt_cache_retention: string | null;
            /** @default null */
            prompt_logprobs: number | null;
            /** @default null */
            reasoning_effort: string | null;
            /** @default null */
            repetition_penalty: number | null;
            /** @default null */
            response_format: (components["schemas"]["TextFormat"] | components["schemas"]["JsonObjectFormat"] | components["schemas"]["JsonSchemaFormat"]) | null;
            /**
             * @description Token ids are not returned: only these values are accepted.
             * @default null
             */
            return_token_ids: null | false;
            /**
             * @description Token ids are not returned: only these values are accepted.
             * @default null
             */
            return_tokens_as_token_ids: null | false;
            /** @default null */
            safety_identifier: string | null;
            /** @default null */
            seed: number | null;
            /** @default null */
            service_tier: string | null;
            /** @default null */
            skip_special_tokens: boolean | null;
            /**
             * @description Special tokens are separated by spaces: only these values are accepted.
             * @default null
             */
            spaces_between_special_tokens: null | true;
            /** @default null */
            stop: string | string[] | null;
            /** @default null */
            stop_token_ids: number[] | null;
            /**
             * @description Answers are not stored: only these values are accepted.
             * @default null
             */
            store: null | false;
            /** @default null */
            stream: boolean | null;
            /** @default null */
            stream_options: components["schemas"]["StreamOptions"] | null;
            /** @default null */
            structured_outputs: components["schemas"]["StructuredOutputs"] | null;
            /** @default null */
            temperature: number | null;
            /** @default null */
            tool_choice: ("auto" | "none" | "required") | (components["schemas"]["NamedFunction"] | components["schemas"]["NamedCustom"] | components["schemas"]["AllowedTools"]) | null;
            /** @default null */
            tools: (components["schemas"]["FunctionTool"] | components["schemas"]["CustomTool"])[] | null;
            /** @default null */
            top_k: number | null;
            /** @default null */
            top_logprobs: number | null;
            /** @default null */
            top_p: number | null;
            /**
             * @description Prompts are not truncated: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            truncate_prompt_tokens: null;
            /**
             * @description Beam search is not served: only these values are accepted.
             * @default null
             */
            use_beam_search: null | false;
            /** @default null */
            user: string | null;
            /**
             * @description Only 'max_tokens' limits the length of an answer: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            verbosity: null | "medium";
            /**
             * @description The web is not searched: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            web_search_options: null;
        };
        /** Choice */
        Choice: {
            /** @enum {unknown} */
            finish_reason: "length" | "stop" | "tool_calls";
            /** @default 0 */
            index: number;
            /** @default null */
            logprobs: components["schemas"]["ChoiceLogprobs"] | null;
            message: components["schemas"]["AnswerMessage"];
        };
        /**
         * ChoiceLogprobs
         * @description An item for each completion token, including a final stop token that is not shown.
         */
        ChoiceLogprobs: {
            content: components["schemas"]["TokenLogprob"][];
            /** @default null */
            refusal: null;
        };
        /** ChooseAny */
        ChooseAny: {
            /** @default null */
            disable_parallel_tool_use: boolean | null;
            /** @enum {unknown} */
            type: "any";
        };
        /** ChooseAuto */
        ChooseAuto: {
            /** @default null */
            disable_parallel_tool_use: boolean | null;
            /** @enum {unknown} */
            type: "auto";
        };
        /**
         * ChooseNone
         * @description No tool is called.
         */
        ChooseNone: {
            /** @enum {unknown} */
            type: "none";
        };
        /** ChooseTool */
        ChooseTool: {
            /** @default null */
            disable_parallel_tool_use: boolean | null;
            name: string;
            /** @enum {unknown} */
            type: "tool";
        };
        /** ChosenCustom */
        ChosenCustom: {
            name: string;
            /** @default null */
            namespace: string | null;
            /** @enum {unknown} */
            type: "custom";
        };
        /** ChosenFunction */
        ChosenFunction: {
            name: string;
            /** @default null */
            namespace: string | null;
            /** @enum {unknown} */
            type: "function";
        };
        /** ChunkChoice */
        ChunkChoice: {
            delta: components["schemas"]["Delta"];
            /** @default null */
            finish_reason: ("length" | "stop" | "tool_calls") | null;
            /** @default 0 */
            index: number;
            /** @default null */
            logprobs: components["schemas"]["ChoiceLogprobs"] | null;
        };
        /** ClosableView */
        ClosableView: {
            correction_picos: number | bigint;
            currency: string;
            period: components["schemas"]["PeriodView"];
            reason: string | null;
            usage_picos: number | bigint;
        };
        /** ClosedMonth */
        ClosedMonth: {
            closed: components["schemas"]["InvoiceView"][];
            month: string;
            next: string | null;
            refused: components["schemas"]["RefusedClosing"][];
        };
        /** CodeCount */
        CodeCount: {
            code: string;
            /** @enum {string} */
            outcome: "refused" | "failed";
            requests: number;
        };
        /**
         * CompactRequest
         * @description The body of a compaction.
         * @example {
         *       "input": "Name three rivers.",
         *       "model": "my-model"
         *     }
         */
        CompactRequest: {
            input: string | (components["schemas"]["MessageItem"] | components["schemas"]["FunctionCallItem"] | components["schemas"]["FunctionOutputItem"] | components["schemas"]["CustomCallItem"] | components["schemas"]["CustomOutputItem"] | components["schemas"]["ReasoningItem"] | components["schemas"]["CompactionItem"])[];
            /** @default null */
            instructions: string | null;
            model: string;
            /** @default null */
            previous_response_id: string | null;
            /** @default null */
            prompt_cache_key: string | null;
            /** @default null */
            prompt_cache_retention: string | null;
            /** @default null */
            service_tier: string | null;
        };
        /**
         * CompactedResponse
         * @description `output`: the messages of the user's, then an item of the type compaction. It is the next turn's input.
         */
        CompactedResponse: {
            created_at: number;
            id: string;
            /** @enum {unknown} */
            object: "response.compaction";
            output: Record<string, never>[];
            usage: components["schemas"]["ResponseUsage"];
        };
        /**
         * CompactionItem
         * @description The summary of an earlier conversation, made by `/v1/responses/compact`. `created_by` is a hint.
         */
        CompactionItem: {
            /** @default null */
            created_by: string | null;
            encrypted_content: string;
            /** @default null */
            id: string | null;
            /** @default null */
            status: string | null;
            /** @enum {unknown} */
            type: "compaction";
        };
        /**
         * Completion
         * @description A whole answer, or one chunk of a stream. In a stream only a text's last chunk has a `finish_reason`.
         */
        Completion: {
            choices: components["schemas"]["CompletionChoice"][];
            created: number;
            id: string;
            model: string;
            /**
             * @default text_completion
             * @enum {unknown}
             */
            object: "text_completion";
            service_tier: string;
            system_fingerprint: string;
            usage?: components["schemas"]["Usage"] | null;
        };
        /**
         * CompletionChoice
         * @description Text j of prompt i has the index i × n + j.
         */
        CompletionChoice: {
            finish_reason: ("length" | "stop" | "tool_calls") | null;
            index: number;
            /** @default null */
            logprobs: components["schemas"]["CompletionLogprobs"] | null;
            prompt_logprobs?: ({
                [key: string]: components["schemas"]["PromptLogprob"];
            } | null)[];
            text: string;
        };
        /**
         * CompletionLogprobs
         * @description Lists of equal length: an item for each completion token; with `echo`, before them an item for each prompt token,
         *         the first with null for its log probabilities. `text_offset` counts characters from the text's beginning;
         *         `top_logprobs` includes the token itself. A token that is a part of a character is written "bytes:\\xe2".
         */
        CompletionLogprobs: {
            text_offset: number[];
            token_logprobs: (number | null)[];
            tokens: string[];
            top_logprobs: ({
                [key: string]: number;
            } | null)[];
        };
        /**
         * CompletionRequest
         * @description The body of a legacy completion. A field without a type is not served: only its neutral values are accepted.
         * @example {
         *       "max_tokens": 16,
         *       "model": "my-model",
         *       "prompt": "Three rivers are"
         *     }
         */
        CompletionRequest: {
            /**
             * @description Special tokens are added before a prompt that is a text: only these values are accepted.
             * @default null
             */
            add_special_tokens: null | true;
            /**
             * @description A list of allowed tokens is not served; 'logit_bias' is: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            allowed_token_ids: null;
            /**
             * @description A list of bad words is not served; 'logit_bias' is: only these values are accepted.
             * @default null
             */
            bad_words: null | unknown[];
            /** @default null */
            best_of: number | null;
            /** @default null */
            echo: boolean | null;
            /** @default null */
            frequency_penalty: number | null;
            /** @default null */
            guided_choice: string[] | null;
            /** @default null */
            guided_decoding_backend: string | null;
            /** @default null */
            guided_grammar: string | null;
            /** @default null */
            guided_json: (Record<string, never> | string) | null;
            /** @default null */
            guided_regex: string | null;
            /**
             * @description 'disable_any_whitespace' or the operator's setting bounds white space between JSON tokens: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            guided_whitespace_pattern: null;
            /** @default null */
            ignore_eos: boolean | null;
            /**
             * @description A text ends before its stop sequence: only these values are accepted.
             * @default null
             */
            include_stop_str_in_output: null | false;
            /**
             * @description Beam search is not served: only these values are accepted.
             * @default null
             */
            length_penalty: null | 1;
            /** @default null */
            logit_bias: {
                [key: string]: number;
            } | null;
            /** @default null */
            logprobs: number | null;
            /** @default null */
            max_tokens: number | null;
            /** @default null */
            min_p: number | null;
            /** @default null */
            min_tokens: number | null;
            model: string;
            /** @default null */
            n: number | null;
            /** @default null */
            presence_penalty: number | null;
            /**
             * @description Requests are ordered by service tier; use 'service_tier': only these values are accepted.
             * @default null
             */
            priority: null | 0;
            /** @description A text, a list of texts, a list of ids, or a list of lists of ids; at most 64 */
            prompt: string | (string | number | number[])[];
            /** @default null */
            prompt_logprobs: number | null;
            /** @default null */
            repetition_penalty: number | null;
            /** @default null */
            response_format: (components["schemas"]["TextFormat"] | components["schemas"]["JsonObjectFormat"] | components["schemas"]["JsonSchemaFormat"]) | null;
            /**
             * @description Token ids are not returned: only these values are accepted.
             * @default null
             */
            return_token_ids: null | false;
            /**
             * @description Token ids are not returned: only these values are accepted.
             * @default null
             */
            return_tokens_as_token_ids: null | false;
            /** @default null */
            seed: number | null;
            /** @default null */
            service_tier: string | null;
            /** @default null */
            skip_special_tokens: boolean | null;
            /**
             * @description Special tokens are separated by spaces: only these values are accepted.
             * @default null
             */
            spaces_between_special_tokens: null | true;
            /** @default null */
            stop: string | string[] | null;
            /** @default null */
            stop_token_ids: number[] | null;
            /** @default null */
            stream: boolean | null;
            /** @default null */
            stream_options: components["schemas"]["StreamOptions"] | null;
            /** @default null */
            structured_outputs: components["schemas"]["StructuredOutputs"] | null;
            /**
             * @description Text before a suffix is not filled in: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            suffix: null | "";
            /** @default null */
            temperature: number | null;
            /** @default null */
            top_k: number | null;
            /** @default null */
            top_p: number | null;
            /**
             * @description Prompts are not truncated: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            truncate_prompt_tokens: null;
            /**
             * @description Beam search is not served: only these values are accepted.
             * @default null
             */
            use_beam_search: null | false;
            /** @default null */
            user: string | null;
        };
        /** CompletionTokensDetails */
        CompletionTokensDetails: {
            /** @default 0 */
            accepted_prediction_tokens: number;
            /** @default 0 */
            audio_tokens: number;
            /** @default 0 */
            reasoning_tokens: number;
            /** @default 0 */
            rejected_prediction_tokens: number;
        };
        /** ConnectorRelease */
        ConnectorRelease: {
            events: number;
            name: string;
        };
        /** ConnectorView */
        ConnectorView: {
            failed_at: number | null;
            gateway_id: string | null;
            /** @enum {null|string} */
            kind: "stripe" | "openmeter" | null;
            lag_s: number;
            last_error: string | null;
            name: string;
            next_attempt_at: number | null;
            retrying: number;
            sent_at: number | null;
            sent_tokens: number;
            stuck: number;
            stuck_reason: string | null;
            url: string | null;
            waiting: number;
            waiting_tokens: number;
            without_account: number;
        };
        /**
         * ConversationChange
         * @description The metadata that replaces that of a conversation; null: none.
         * @example {
         *       "metadata": {
         *         "topic": "lakes"
         *       }
         *     }
         */
        ConversationChange: {
            metadata: {
                [key: string]: string;
            } | null;
        };
        /** ConversationItemList */
        ConversationItemList: {
            data: {
                [key: string]: unknown;
            }[];
            first_id: string | null;
            has_more: boolean;
            last_id: string | null;
            /**
             * @default list
             * @constant
             */
            object: "list";
        };
        /** ConversationObject */
        ConversationObject: {
            created_at: number;
            id: string;
            metadata: {
                [key: string]: string;
            };
            /**
             * @default conversation
             * @constant
             */
            object: "conversation";
        };
        /**
         * ConversationReference
         * @description A stored conversation.
         */
        ConversationReference: {
            id: string;
        };
        /** CorrectionView */
        CorrectionView: {
            actor: string;
            adapter: string | null;
            counted_at: number;
            created_at: number;
            currency: string;
            id: string;
            key_id: string | null;
            meter: string | null;
            model: string | null;
            month?: string | null;
            number?: string | null;
            period_id: string;
            picos: number | bigint;
            project_id: string | null;
            reason: string;
            request_id: string | null;
            tenant_id: string;
            tier: string | null;
            tokens: number;
        };
        /** CostBucket */
        CostBucket: {
            end_time: number;
            /**
             * @default bucket
             * @constant
             */
            object: "bucket";
            results: components["schemas"]["CostResult"][];
            start_time: number;
        };
        /** CostPage */
        CostPage: {
            data: components["schemas"]["CostBucket"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** CostResult */
        CostResult: {
            adapter?: string | null;
            amount: components["schemas"]["Amount"];
            api_key_id?: string | null;
            batch?: boolean | null;
            correction_picos: number | bigint;
            line_item?: string | null;
            model?: string | null;
            /**
             * @default organization.costs.result
             * @constant
             */
            object: "organization.costs.result";
            project_id?: string | null;
            quantity?: number | null;
            service_tier?: string | null;
            tags?: {
                [key: string]: string | null;
            } | null;
            tenant_id?: string | null;
            tier?: string | null;
        };
        /**
         * CountRequest
         * @description A conversation. If the last message is the assistant's, the answer continues it. A field without a type is not
         *         served: only its neutral values are accepted.
         * @example {
         *       "messages": [
         *         {
         *           "content": "Name three rivers.",
         *           "role": "user"
         *         }
         *       ],
         *       "model": "my-model"
         *     }
         */
        CountRequest: {
            /** @default null */
            betas: string[] | null;
            /** @default null */
            billing_policy: Record<string, never> | null;
            /** @default null */
            cache_control: components["schemas"]["CacheControl"] | null;
            /** @default null */
            compaction: Record<string, never> | null;
            /** @default null */
            context_management: Record<string, never> | null;
            /** @default null */
            diagnostics: Record<string, never> | null;
            /** @default null */
            fallback_credit_token: unknown;
            /** @default null */
            fallbacks: unknown;
            /**
             * @description Tools are called by the client: only these values are accepted.
             * @default null
             */
            mcp_servers: null | unknown[];
            messages: components["schemas"]["Message"][];
            model: string;
            /** @default null */
            output_config: components["schemas"]["OutputConfig"] | null;
            /**
             * @description 'output_config.format' is served in its place: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            output_format: null;
            /** @default null */
            speed: string | null;
            /** @default null */
            system: string | components["schemas"]["TextBlock"][] | null;
            /** @default null */
            thinking: components["schemas"]["Thinking"] | null;
            /** @default null */
            tool_choice: (components["schemas"]["ChooseAuto"] | components["schemas"]["ChooseAny"] | components["schemas"]["ChooseTool"] | components["schemas"]["ChooseNone"]) | null;
            /** @default null */
            tools: components["schemas"]["Tool"][] | null;
            /** @default null */
            user_profile_id: string | null;
            /** @default null */
            workspace_id: string | null;
        };
        /** CustomCall */
        CustomCall: {
            custom: components["schemas"]["CalledCustom"];
            id: string;
            /** @default null */
            index: number | null;
            /** @enum {unknown} */
            type: "custom";
        };
        /** CustomCallItem */
        CustomCallItem: {
            call_id: string;
            /** @default null */
            caller: unknown;
            /** @default null */
            id: string | null;
            input: string;
            name: string;
            /** @default null */
            namespace: string | null;
            /** @default null */
            status: string | null;
            /** @enum {unknown} */
            type: "custom_tool_call";
        };
        /** CustomDelta */
        CustomDelta: {
            input?: string;
            name?: string;
        };
        /** CustomOutputItem */
        CustomOutputItem: {
            call_id: string;
            /** @default null */
            caller: unknown;
            /** @default null */
            id: string | null;
            output: string | (components["schemas"]["InputTextPart"] | components["schemas"]["OutputTextPart"] | components["schemas"]["PlainTextPart"] | components["schemas"]["RefusalPart"])[];
            /** @default null */
            status: string | null;
            /** @enum {unknown} */
            type: "custom_tool_call_output";
        };
        /** CustomSpec */
        CustomSpec: {
            /** @default null */
            description: string | null;
            /** @default null */
            format: (components["schemas"]["AnyInput"] | components["schemas"]["GrammarInput"]) | null;
            name: string;
        };
        /**
         * CustomTool
         * @description A tool whose input is one text.
         */
        CustomTool: {
            custom: components["schemas"]["CustomSpec"];
            /** @enum {unknown} */
            type: "custom";
        };
        /** DefaultLimits */
        DefaultLimits: {
            key: components["schemas"]["AllowanceView"];
            quotas: components["schemas"]["QuotasView"];
            tenant: components["schemas"]["AllowanceView"];
        };
        /** DeletedConversation */
        DeletedConversation: {
            /**
             * @default true
             * @constant
             */
            deleted: true;
            id: string;
            /**
             * @default conversation.deleted
             * @constant
             */
            object: "conversation.deleted";
        };
        /** DeletedFile */
        DeletedFile: {
            /**
             * @default true
             * @constant
             */
            deleted: true;
            id: string;
            /**
             * @default file
             * @constant
             */
            object: "file";
        };
        /** DeletedMessageBatch */
        DeletedMessageBatch: {
            id: string;
            /**
             * @default message_batch_deleted
             * @constant
             */
            type: "message_batch_deleted";
        };
        /** DeletedResponse */
        DeletedResponse: {
            /**
             * @default true
             * @constant
             */
            deleted: true;
            id: string;
            /**
             * @default response
             * @constant
             */
            object: "response";
        };
        /** DeliveryView */
        DeliveryView: {
            attempts: number;
            delivered_at: number | null;
            last_error: string | null;
            next_attempt_at: number | null;
            /** @enum {string} */
            state: "pending" | "delivered" | "failed";
            webhook_id: string;
        };
        /** Delta */
        Delta: {
            content?: string;
            reasoning?: string;
            reasoning_content?: string;
            /** @enum {unknown} */
            role?: "assistant";
            tool_calls?: components["schemas"]["CallDelta"][];
        };
        /** DetokenizeAnswer */
        DetokenizeAnswer: {
            prompt: string;
        };
        /**
         * DetokenizeRequest
         * @description Ids of the model's vocabulary, at most as many as its context has tokens.
         * @example {
         *       "model": "my-model",
         *       "tokens": [
         *         1,
         *         2,
         *         3
         *       ]
         *     }
         */
        DetokenizeRequest: {
            model: string;
            tokens: number[];
        };
        /**
         * DeveloperMessage
         * @description OpenAI's newer name of a system message.
         */
        DeveloperMessage: {
            content: string | components["schemas"]["TextPart"][];
            /** @default null */
            name: string | null;
            /** @enum {unknown} */
            role: "developer";
        };
        /** DocumentView */
        DocumentView: {
            currency: string;
            customer: components["schemas"]["Party"];
            decimals: number;
            due_at: number | null;
            exact_picos: number | bigint;
            issued_at: number;
            issuer: components["schemas"]["Party"];
            /** @enum {string} */
            kind: "invoice" | "credit_note";
            net_minor: number;
            number: string;
            tax_minor: number;
            taxes: components["schemas"]["TaxLine"][];
            total_minor: number;
        };
        /**
         * Embedding
         * @description The vector of input `index`, of length 1: numbers, or base64 of little-endian float32.
         */
        Embedding: {
            embedding: number[] | string;
            index: number;
            /**
             * @default embedding
             * @enum {unknown}
             */
            object: "embedding";
        };
        /**
         * EmbeddingList
         * @description In the order of the inputs.
         */
        EmbeddingList: {
            data: components["schemas"]["Embedding"][];
            model: string;
            /**
             * @default list
             * @enum {unknown}
             */
            object: "list";
            usage: components["schemas"]["EmbeddingUsage"];
        };
        /** EmbeddingProperties */
        EmbeddingProperties: {
            dimensions: number;
            /** @enum {string} */
            pooling: "last" | "mean";
            /**
             * @default cosine
             * @constant
             */
            scores: "cosine";
        };
        /**
         * EmbeddingUsage
         * @description All tokens are of the inputs.
         */
        EmbeddingUsage: {
            prompt_tokens: number;
            total_tokens: number;
        };
        /**
         * EmbeddingsRequest
         * @description One vector is made of each input.
         * @example {
         *       "input": [
         *         "Three rivers",
         *         "Two lakes"
         *       ],
         *       "model": "my-model"
         *     }
         */
        EmbeddingsRequest: {
            /**
             * @description Special tokens are added before an input that is a text: only these values are accepted.
             * @default null
             */
            add_special_tokens: null | true;
            /** @default null */
            dimensions: number | null;
            /**
             * @description Vectors are float32: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            embed_dtype: null | "float32";
            /** @default null */
            encoding_format: ("base64" | "float") | null;
            /**
             * @description Base64 is of little-endian numbers: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            endianness: null | "native" | "little";
            /** @description A text, a list of texts, a list of ids, or a list of lists of ids; at most 2048 */
            input: string | (string | number | number[])[];
            model: string;
            /**
             * @description Vectors have length 1: only these values are accepted.
             * @default null
             */
            normalize: null | true;
            /**
             * @description Requests are ordered by service tier; use 'service_tier': only these values are accepted.
             * @default null
             */
            priority: null | 0;
            /** @default null */
            service_tier: string | null;
            /**
             * @description Inputs are not truncated: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            truncate_prompt_tokens: null;
            /** @default null */
            user: string | null;
        };
        /** EndUserView */
        EndUserView: {
            created_at: number;
            held: number | bigint;
            id: string;
            left: number | bigint;
            limit_amount: number | bigint;
            resets_at: number | null;
            shared: boolean;
            used: number | bigint;
        };
        /** Ending */
        Ending: {
            /** @enum {unknown} */
            stop_reason: "end_turn" | "max_tokens" | "stop_sequence" | "tool_use";
            stop_sequence: string | null;
        };
        /** EngineCounts */
        EngineCounts: {
            listed: number;
            ready: number;
        };
        /**
         * EngineDrain
         * @example {
         *       "draining": true
         *     }
         */
        EngineDrain: {
            /** @default true */
            draining: boolean;
        };
        /**
         * EngineEvent
         * @description The data of an event `engine`: the state of one engine at one moment. `requests` are at most 256 of
         *         `requests_total`: running ones by tier, oldest first, then waiting ones, oldest first. `adapters` are at most 1,024
         *         of `adapters_total`, those in the arena first. `preemptions` are those since the previous event.
         */
        EngineEvent: {
            adapters: components["schemas"]["LiveAdapter"][];
            adapters_total: number;
            arena: components["schemas"]["LiveArena"];
            at: number;
            engine: string;
            epoch: string;
            preemptions: components["schemas"]["LivePreemption"][];
            requests: components["schemas"]["LiveRequest"][];
            requests_total: number;
            steps: number;
            tiers: components["schemas"]["LiveTier"][];
        };
        /** EngineTierView */
        EngineTierView: {
            name: string;
            queued: number;
            wait_s: number;
        };
        /** EngineView */
        EngineView: {
            adapters_resident: string[];
            epoch: string;
            pages_adapters: number;
            pages_cached: number;
            pages_free: number;
            pages_total: number;
            running: number;
            step: number;
            tokens_lost: number;
            tokens_made: number;
            tokens_overrun: number;
            waiting: {
                [key: string]: number;
            };
        };
        /** EntryView */
        EntryView: {
            account: string;
            amount_picos: number | bigint;
            currency: string;
            meter: string | null;
            recorded_at: number;
            transaction_id: string;
        };
        /**
         * ErrorBody
         * @description The body of every error answer, and of an error event in a stream.
         */
        ErrorBody: {
            error: components["schemas"]["ErrorDetail"];
        };
        /**
         * ErrorDetail
         * @description `errors`: every field at fault, where an administrative write has several; the first is `param`.
         */
        ErrorDetail: {
            code: string | null;
            errors?: components["schemas"]["FieldError"][];
            message: string;
            param: string | null;
            type: string;
        };
        /** ErrorRates */
        ErrorRates: {
            data: components["schemas"]["RateBucket"][];
            /**
             * @default list
             * @constant
             */
            object: "list";
            total: components["schemas"]["RateBucket"];
        };
        /** ExportView */
        ExportView: {
            actor: string;
            attempts: number;
            created_at: number;
            error: string | null;
            file: string | null;
            finished_at: number | null;
            /** @enum {string} */
            format: "csv" | "parquet" | "jsonl";
            host: string | null;
            id: string;
            /** @enum {string} */
            kind: "focus" | "events";
            month: string;
            progress: number;
            rows: number;
            sha256: string | null;
            size_bytes: number | null;
            started_at: number | null;
            /** @enum {string} */
            state: "queued" | "running" | "done" | "failed" | "cancelled" | "removed";
            tenant_id: string | null;
        };
        /** Facts */
        Facts: {
            bytes?: number | null;
            digest: string;
            parameters?: number | null;
            rank_max?: number | null;
            /** @default [] */
            targets: string[];
            trained_for?: string | null;
            /** @default [] */
            warnings: string[];
        };
        /**
         * FieldError
         * @description One field at fault.
         */
        FieldError: {
            message: string;
            param: string | null;
        };
        /** FileList */
        FileList: {
            data: components["schemas"]["FileObject"][];
            first_id: string | null;
            has_more: boolean;
            last_id: string | null;
            /**
             * @default list
             * @constant
             */
            object: "list";
        };
        /** FileObject */
        FileObject: {
            bytes: number;
            created_at: number;
            expires_at: number | null;
            filename: string;
            id: string;
            /**
             * @default file
             * @constant
             */
            object: "file";
            /** @enum {string} */
            purpose: "batch" | "batch_output";
            /**
             * @default processed
             * @constant
             */
            status: "processed";
        };
        /** FileView */
        FileView: {
            bytes: number;
            created_at: number;
            expires_at: number | null;
            filename: string;
            id: string;
            in_use: number;
            key_id: string;
            /** @enum {string} */
            purpose: "batch" | "batch_output";
            sha256: string;
            tenant_id: string;
        };
        /** LedgerAudit */
        Findings: {
            cost_difference_picos: number | bigint;
            open_holds: number;
            orphaned: string[];
            oversettled: string[];
            overshot: string[];
            unbalanced: string[];
            unrecorded: string[];
            wrong_counters: string[];
        };
        /** FleetEngineView */
        FleetEngineView: {
            adapters_resident: number;
            address: string;
            build: string;
            epoch: string;
            loading: {
                [key: string]: number;
            };
            models: string[];
            name: string;
            prefix_hit_rate: number | null;
            protocol_version: number | null;
            refused: {
                [key: string]: string;
            };
            running: number;
            silent: {
                [key: string]: string;
            };
            /** @enum {string} */
            state: "ready" | "draining" | "leaving" | "stuck" | "connecting";
            streams: number;
            tiers: components["schemas"]["EngineTierView"][];
            token_age_s: {
                [key: string]: number;
            };
            tokens_per_s: number;
            waiting: number;
        };
        /** FleetView */
        FleetView: {
            data: components["schemas"]["FleetEngineView"][];
            hedged: number;
            lost: number;
            moved: number;
            /**
             * @default list
             * @constant
             */
            object: "list";
            resumed: number;
            roster_stale_s: number | null;
        };
        /**
         * FunctionCall
         * @description A call of an earlier answer. `index` is a hint: some clients send streamed calls back with it.
         */
        FunctionCall: {
            function: components["schemas"]["CalledFunction"];
            id: string;
            /** @default null */
            index: number | null;
            /** @enum {unknown} */
            type: "function";
        };
        /**
         * FunctionCallItem
         * @description A call of an earlier answer. `namespace`: of a tool in a namespace. `caller` and `parsed_arguments` are hints;
         *         the SDK adds the latter.
         */
        FunctionCallItem: {
            arguments: string;
            call_id: string;
            /** @default null */
            caller: unknown;
            /** @default null */
            id: string | null;
            name: string;
            /** @default null */
            namespace: string | null;
            /** @default null */
            parsed_arguments: unknown;
            /** @default null */
            status: string | null;
            /** @enum {unknown} */
            type: "function_call";
        };
        /** FunctionDelta */
        FunctionDelta: {
            arguments?: string;
            name?: string;
        };
        /**
         * FunctionOutputItem
         * @description The result of a call. `caller` is a hint.
         */
        FunctionOutputItem: {
            call_id: string;
            /** @default null */
            caller: unknown;
            /** @default null */
            id: string | null;
            output: string | (components["schemas"]["InputTextPart"] | components["schemas"]["OutputTextPart"] | components["schemas"]["PlainTextPart"] | components["schemas"]["RefusalPart"])[];
            /** @default null */
            status: string | null;
            /** @enum {unknown} */
            type: "function_call_output";
        };
        /**
         * FunctionSpec
         * @description `parameters`: a JSON Schema of an object. With `strict` the arguments follow it, or the request is refused.
         */
        FunctionSpec: {
            /** @default null */
            description: string | null;
            name: string;
            /** @default null */
            parameters: Record<string, never> | null;
            /** @default null */
            strict: boolean | null;
        };
        /** FunctionTool */
        FunctionTool: {
            function: components["schemas"]["FunctionSpec"];
            /** @enum {unknown} */
            type: "function";
        };
        /** GatewayVersion */
        GatewayVersion: {
            version: string;
        };
        /**
         * GrammarInput
         * @description The input follows a grammar.
         */
        GrammarInput: {
            grammar: components["schemas"]["GrammarSpec"];
            /** @enum {unknown} */
            type: "grammar";
        };
        /** GrammarSpec */
        GrammarSpec: {
            definition: string;
            /** @enum {unknown} */
            syntax: "lark" | "regex";
        };
        /**
         * GrammaticalInput
         * @description The input follows a grammar.
         */
        GrammaticalInput: {
            definition: string;
            /** @enum {unknown} */
            syntax: "lark" | "regex";
            /** @enum {unknown} */
            type: "grammar";
        };
        /** Health */
        Health: {
            engines: components["schemas"]["EngineCounts"];
            problems: {
                [key: string]: string;
            };
            ready: boolean;
            silent_models?: {
                [key: string]: string;
            };
        };
        /** HealthItem */
        HealthItem: {
            detail: string;
            name: string;
            since: number;
            /** @enum {string} */
            status: "ok" | "degraded" | "down";
        };
        /** HealthReport */
        HealthReport: {
            at: number;
            data: components["schemas"]["HealthItem"][];
            /**
             * @default list
             * @constant
             */
            object: "list";
            /** @enum {string} */
            status: "ok" | "degraded" | "down";
        };
        /** HoldView */
        HoldView: {
            ended_at: number | null;
            gateway_id: string;
            held_at: number;
            hold_picos: number | bigint;
            lost_tokens: number;
            max_tokens: number;
            price_version_id: string;
            settled_picos: number | bigint;
            windows: components["schemas"]["WindowView"][];
        };
        /** Hour */
        Hour: {
            cost_picos: {
                [key: string]: number | bigint;
            };
            requests: number;
            start: number;
            tokens: number;
        };
        /** Imbalance */
        Imbalance: {
            expected: number;
            found: number;
            what: string;
            where: string;
        };
        /** IncompleteDetails */
        IncompleteDetails: {
            /** @enum {unknown} */
            reason: "max_output_tokens";
        };
        /** InputItems */
        InputItems: {
            data: {
                [key: string]: unknown;
            }[];
            first_id: string | null;
            has_more: boolean;
            last_id: string | null;
            /**
             * @default list
             * @constant
             */
            object: "list";
        };
        /** InputJsonDelta */
        InputJsonDelta: {
            partial_json: string;
            /** @enum {unknown} */
            type: "input_json_delta";
        };
        /**
         * InputTextPart
         * @description `prompt_cache_breakpoint` is a hint.
         */
        InputTextPart: {
            /** @default null */
            prompt_cache_breakpoint: unknown;
            text: string;
            /** @enum {unknown} */
            type: "input_text";
        };
        /** InputTokens */
        InputTokens: {
            input_tokens: number;
            /**
             * @default response.input_tokens
             * @constant
             */
            object: "response.input_tokens";
        };
        /** InputTokensDetails */
        InputTokensDetails: {
            cache_write_tokens: number;
            cached_tokens: number;
        };
        /** InvoiceView */
        InvoiceView: {
            correction_picos: number | bigint;
            currency: string;
            document: components["schemas"]["DocumentView"] | null;
            id: string;
            issued_at: number;
            paid_minor: number;
            /** @enum {null|string} */
            payment: "unpaid" | "partly_paid" | "paid" | "overdue" | "nothing_due" | null;
            period: components["schemas"]["PeriodView"];
            tenant_id: string;
            total_picos: number | bigint;
            usage_picos: number | bigint;
        };
        /** IssuerView */
        IssuerView: {
            address: string[];
            credit_series: string;
            invoice_series: string;
            name: string;
            payment_days: number;
            tax_id: string | null;
        };
        /**
         * JsonObjectFormat
         * @description The answer is a JSON object.
         */
        JsonObjectFormat: {
            /** @enum {unknown} */
            type: "json_object";
        };
        /**
         * JsonSchemaFormat
         * @description The answer is JSON that the schema allows.
         */
        JsonSchemaFormat: {
            json_schema: components["schemas"]["SchemaSpec"];
            /** @enum {unknown} */
            type: "json_schema";
        };
        /** Key */
        Key: {
            allowed_ips?: string[] | null;
            break_glass: boolean;
            created_at: number;
            default_max_tokens: number | null;
            expires_at: number | null;
            first_key_id: string | null;
            id: string;
            kind: string;
            last4: string;
            last_used_at: number | null;
            models?: string[] | null;
            name: string;
            prefix: string;
            project_id: string | null;
            revoked_at: number | null;
            /** @enum {null|string} */
            role: "owner" | "operator" | "finance" | "tenant_admin" | "read_only" | null;
            rotated_to: string | null;
            scopes: string[];
            tags?: {
                [key: string]: string;
            };
            tenant_id: string | null;
            tier: string | null;
        };
        /**
         * KeyChange
         * @example {
         *       "allowed_ips": [
         *         "192.0.2.0/24"
         *       ]
         *     }
         */
        KeyChange: {
            allowed_ips?: string[] | null;
            break_glass?: boolean | null;
            default_max_tokens?: number | null;
            models?: string[] | null;
            project?: string | null;
            tags?: {
                [key: string]: string;
            };
        };
        /**
         * LimitsSetting
         * @example {
         *       "requests_per_minute": 600,
         *       "tenant": "northwind"
         *     }
         */
        LimitsSetting: {
            batches?: number | null;
            concurrency?: number | null;
            enqueued_tokens?: number | null;
            files?: number | null;
            key_id?: string | null;
            requests_per_minute?: number | null;
            tenant: string;
            tokens_per_minute?: number | null;
            total_file_bytes?: number | null;
        };
        /** LineView */
        LineView: {
            adapter: string | null;
            adapter_name: string | null;
            correction_id: string | null;
            /** @enum {string} */
            kind: "usage" | "correction";
            line: number;
            meter: string | null;
            model: string | null;
            picos: number | bigint;
            price_from: number | null;
            price_version_id: string | null;
            tier: string | null;
            tokens: number;
            unit_price_picos: number | null;
        };
        /** ListedAlertView */
        ListedAlertView: {
            budget_id: string;
            crossed_at: number;
            deliveries: components["schemas"]["DeliveryView"][];
            id: string;
            /** @enum {string} */
            kind: "hard" | "soft";
            limit_amount: number | bigint;
            /** @enum {string} */
            period: "day" | "month" | "total";
            /** @enum {string} */
            scope: "tenant" | "project" | "key";
            scope_id: string;
            tenant_id: string;
            threshold: number;
            /** @enum {string} */
            unit: "tokens" | "money";
            used: number | bigint;
            window_start: number;
        };
        /** ListedBudgetView */
        ListedBudgetView: {
            created_at: number;
            end_users: number | null;
            end_users_near: number | null;
            held: number | bigint;
            id: string;
            /** @enum {string} */
            kind: "hard" | "soft";
            left: number | bigint;
            limit_amount: number | bigint;
            per_end_user: boolean;
            /** @enum {string} */
            period: "day" | "month" | "total";
            posted: number;
            projected: number | null;
            resets_at: number | null;
            run_out_at: number | null;
            /** @enum {string} */
            scope: "tenant" | "project" | "key";
            scope_id: string;
            tenant_id: string;
            thresholds: number[];
            /** @enum {string} */
            unit: "tokens" | "money";
            used: number | bigint;
        };
        /** LiveAdapter */
        LiveAdapter: {
            bytes: number;
            digest: string;
            name: string | null;
            /** @enum {unknown} */
            where: "device" | "disk" | "host";
        };
        /**
         * LiveArena
         * @description `map` is the arena in page order: pairs of an index into `owners` and a number of pages; these numbers add up to
         *         `pages`. In a very large arena, `map_cell_pages` pages are shown as the first of them.
         */
        LiveArena: {
            map: [
                number,
                number
            ][];
            map_cell_pages: number;
            owners: components["schemas"]["LiveOwner"][];
            page_bytes: number;
            pages: number;
        };
        /**
         * LiveOwner
         * @description The owner of `pages` pages. A page shared by several requests belongs to the highest of their tiers. `cached`
         *         pages are used by no request, and are reused by the next one with the same prompt. `adapter` is a name, or the
         *         digest if no name is known.
         */
        LiveOwner: {
            adapter: string | null;
            adapter_digest: string | null;
            /** @enum {unknown} */
            kind: "adapter" | "cached" | "free" | "kv";
            model: string | null;
            pages: number;
            tier: string | null;
        };
        /**
         * LivePreemption
         * @description `number` counts the engine's preemptions: a gap means that some are missing from the events.
         */
        LivePreemption: {
            at: number;
            caused_by_tier: string;
            /** @enum {unknown} */
            kind: "recompute" | "swap";
            number: number;
            request_id: string;
            tier: string;
        };
        /**
         * LiveRequest
         * @description `number` is unique: the engine's count of arrivals. Texts of one HTTP request share a `request_id`. `tenant` (a
         *         slug) is null until the request's tenant is known.
         */
        LiveRequest: {
            adapter: string | null;
            adapter_digest: string | null;
            age_s: number;
            completion_tokens: number;
            model: string;
            number: number;
            prompt_tokens: number;
            request_id: string;
            /** @enum {unknown} */
            state: "decode" | "preempted" | "prefill" | "waiting";
            tenant: string | null;
            tenant_id: string | null;
            tier: string;
        };
        /**
         * LiveTier
         * @description `held_pages`: distinct pages, including those of its requests' adapters. `preempted_total`: preemptions of the
         *         tier's requests since the engine started.
         */
        LiveTier: {
            floor_pages: number;
            held_pages: number;
            preempted_total: number;
            running: number;
            tier: string;
            waiting: number;
        };
        /** Margins */
        Margins: {
            device_second_picos: number | bigint;
            device_second_prices: {
                [key: string]: number;
            };
            month: string;
            sequence: number;
            tiers: components["schemas"]["TierMargin"][];
        };
        /** Message */
        Message: {
            content: string | (components["schemas"]["TextBlock"] | components["schemas"]["ToolUseBlock"] | components["schemas"]["ToolResultBlock"] | components["schemas"]["ThinkingBlock"] | components["schemas"]["RedactedThinkingBlock"])[];
            /** @enum {unknown} */
            role: "assistant" | "system" | "user";
        };
        /** MessageAnswer */
        MessageAnswer: {
            content: (components["schemas"]["TextContent"] | components["schemas"]["ThinkingContent"] | components["schemas"]["ToolUseContent"])[];
            id: string;
            model: string;
            /**
             * @default assistant
             * @enum {unknown}
             */
            role: "assistant";
            stop_reason: ("end_turn" | "max_tokens" | "stop_sequence" | "tool_use") | null;
            stop_sequence: string | null;
            /** @enum {unknown} */
            type: "message";
            usage: components["schemas"]["ServedUsage"];
        };
        /** MessageBatchCounts */
        MessageBatchCounts: {
            canceled: number;
            errored: number;
            expired: number;
            processing: number;
            succeeded: number;
        };
        /** MessageBatchObject */
        MessageBatchObject: {
            archived_at: string | null;
            cancel_initiated_at: string | null;
            created_at: string;
            ended_at: string | null;
            expires_at: string;
            id: string;
            /** @enum {string} */
            processing_status: "in_progress" | "canceling" | "ended";
            request_counts: components["schemas"]["MessageBatchCounts"];
            results_url: string | null;
            /**
             * @default message_batch
             * @constant
             */
            type: "message_batch";
        };
        /** MessageBatchPage */
        MessageBatchPage: {
            data: components["schemas"]["MessageBatchObject"][];
            first_id: string | null;
            has_more: boolean;
            last_id: string | null;
        };
        /**
         * MessageBatchRequest
         * @description The body of a new batch of messages, which is read while it arrives.
         * @example {
         *       "requests": [
         *         {
         *           "custom_id": "1",
         *           "params": {
         *             "max_tokens": 64,
         *             "messages": [
         *               {
         *                 "content": "Name three rivers.",
         *                 "role": "user"
         *               }
         *             ],
         *             "model": "my-model"
         *           }
         *         }
         *       ]
         *     }
         */
        MessageBatchRequest: {
            requests: components["schemas"]["BatchedMessage"][];
        };
        /** MessageDelta */
        MessageDelta: {
            delta: components["schemas"]["Ending"];
            /** @enum {unknown} */
            type: "message_delta";
            usage: components["schemas"]["MessagesUsage"];
        };
        /**
         * MessageItem
         * @description `phase` is a hint.
         */
        MessageItem: {
            content: string | (components["schemas"]["InputTextPart"] | components["schemas"]["OutputTextPart"] | components["schemas"]["PlainTextPart"] | components["schemas"]["RefusalPart"])[];
            /** @default null */
            id: string | null;
            /** @default null */
            phase: string | null;
            /** @enum {unknown} */
            role: "assistant" | "developer" | "system" | "user";
            /** @default null */
            status: string | null;
            /** @enum {unknown} */
            type: "message";
        };
        /** MessageStart */
        MessageStart: {
            message: components["schemas"]["MessageAnswer"];
            /** @enum {unknown} */
            type: "message_start";
        };
        /** MessageStop */
        MessageStop: {
            /** @enum {unknown} */
            type: "message_stop";
        };
        /**
         * MessagesRequest
         * @description A conversation, and the limits and sampling of its answer.
         * @example {
         *       "max_tokens": 64,
         *       "messages": [
         *         {
         *           "content": "Name three rivers.",
         *           "role": "user"
         *         }
         *       ],
         *       "model": "my-model"
         *     }
         */
        MessagesRequest: {
            /** @default null */
            betas: string[] | null;
            /** @default null */
            billing_policy: Record<string, never> | null;
            /** @default null */
            cache_control: components["schemas"]["CacheControl"] | null;
            /** @default null */
            compaction: Record<string, never> | null;
            /**
             * @description No code is run: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            container: null;
            /** @default null */
            context_management: Record<string, never> | null;
            /** @default null */
            diagnostics: Record<string, never> | null;
            /** @default null */
            fallback_credit_token: unknown;
            /** @default null */
            fallbacks: unknown;
            /**
             * @description A region cannot be chosen: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            inference_geo: null | "global";
            max_tokens: number;
            /**
             * @description Tools are called by the client: only these values are accepted.
             * @default null
             */
            mcp_servers: null | unknown[];
            messages: components["schemas"]["Message"][];
            /** @default null */
            metadata: components["schemas"]["Metadata"] | null;
            model: string;
            /** @default null */
            output_config: components["schemas"]["OutputConfig"] | null;
            /**
             * @description 'output_config.format' is served in its place: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            output_format: null;
            /** @default null */
            service_tier: string | null;
            /** @default null */
            speed: string | null;
            /** @default null */
            stop_sequences: string[] | null;
            /** @default null */
            stream: boolean | null;
            /** @default null */
            system: string | components["schemas"]["TextBlock"][] | null;
            /** @default null */
            temperature: number | null;
            /** @default null */
            thinking: components["schemas"]["Thinking"] | null;
            /** @default null */
            tool_choice: (components["schemas"]["ChooseAuto"] | components["schemas"]["ChooseAny"] | components["schemas"]["ChooseTool"] | components["schemas"]["ChooseNone"]) | null;
            /** @default null */
            tools: components["schemas"]["Tool"][] | null;
            /** @default null */
            top_k: number | null;
            /** @default null */
            top_p: number | null;
            /** @default null */
            user_profile_id: string | null;
            /** @default null */
            workspace_id: string | null;
        };
        /**
         * MessagesUsage
         * @description `input_tokens` excludes the cached tokens, which `cache_read_input_tokens` counts. Cache writes are free.
         */
        MessagesUsage: {
            /** @default 0 */
            cache_creation_input_tokens: number;
            /** @default 0 */
            cache_read_input_tokens: number;
            input_tokens: number;
            output_tokens: number;
            output_tokens_details?: components["schemas"]["OutputTokensDetails"];
        };
        /**
         * Metadata
         * @description A hint.
         */
        Metadata: {
            /** @default null */
            user_id: string | null;
        };
        /** ModelCapabilities */
        ModelCapabilities: {
            /** @default false */
            embeddings: boolean;
            /** @default false */
            reasoning: boolean;
            /** @default false */
            structured_outputs: boolean;
            /** @default false */
            tools: boolean;
        };
        /** ModelCard */
        ModelCard: {
            capabilities?: components["schemas"]["ModelCapabilities"] | null;
            created: number;
            embedding?: components["schemas"]["EmbeddingProperties"] | null;
            id: string;
            max_model_len?: number | null;
            /**
             * @default model
             * @constant
             */
            object: "model";
            owned_by: string;
            parent?: string | null;
        };
        /** ModelList */
        ModelList: {
            data: components["schemas"]["ModelCard"][];
            /**
             * @default list
             * @constant
             */
            object: "list";
        };
        /** ModelQualityView */
        ModelQualityView: {
            kept_layers: number;
            mean_kl: number;
            measured_at: number;
            perplexity: number;
            reference_perplexity: number;
            tokens: number;
            top1: number;
            worst_layer: number;
            worst_layer_error: number;
        };
        /** ModelView */
        ModelView: {
            adapters: number;
            changed_at: number | null;
            coming: boolean | null;
            context_tokens: number | null;
            digest: string | null;
            /** @enum {string} */
            dtype: "float32" | "bfloat16" | "float16";
            fallbacks: string[];
            id: string | null;
            /** @enum {string} */
            kv_dtype: "auto" | "fp8";
            kv_format: string | null;
            kv_tokens: number | null;
            leaving: boolean | null;
            loads: number | null;
            max_tokens_default: number;
            name: string;
            /** @enum {string} */
            origin: "config" | "added";
            page_waste_bytes: number | null;
            pages: number | null;
            path: string;
            pinned: boolean;
            pinned_there: boolean | null;
            quality: components["schemas"]["ModelQualityView"] | null;
            /** @enum {string} */
            quantize: "none" | "fp8" | "int8" | "int4";
            reason: string | null;
            running: number | null;
            /** @enum {string} */
            state: "serving" | "loading" | "draining" | "refused" | "removed";
            tenants: string[] | null;
            tokens_per_page: number | null;
            vocab_size: number | null;
            wait_s: number | null;
            waiting: number | null;
            weights_bytes: number | null;
            weights_format: string | null;
            /** @enum {null|string} */
            where: "device" | "host" | "disk" | null;
        };
        /** ModelsView */
        ModelsView: {
            adapters: components["schemas"]["LiveAdapter"][];
            adapters_total: number;
            data: components["schemas"]["ModelView"][];
            engine_away: string | null;
            /**
             * @default list
             * @constant
             */
            object: "list";
            quality_limits: components["schemas"]["QualityLimitsView"];
            weights_bytes: number | null;
        };
        /**
         * MonthClosing
         * @example {
         *       "month": "2026-01"
         *     }
         */
        MonthClosing: {
            after?: string | null;
            month: string;
        };
        /** Named */
        Named: {
            name: string;
        };
        /** NamedCustom */
        NamedCustom: {
            custom: components["schemas"]["Named"];
            /** @enum {unknown} */
            type: "custom";
        };
        /** NamedFunction */
        NamedFunction: {
            function: components["schemas"]["Named"];
            /** @enum {unknown} */
            type: "function";
        };
        /**
         * NamespaceTools
         * @description Tools whose calls have the name and the namespace apart. `description` is a hint.
         */
        NamespaceTools: {
            /** @default null */
            description: string | null;
            name: string;
            tools: (components["schemas"]["ResponseFunction"] | components["schemas"]["ResponseCustomTool"])[];
            /** @enum {unknown} */
            type: "namespace";
        };
        /**
         * NewConversation
         * @description The body of a new conversation.
         * @example {
         *       "items": [
         *         {
         *           "content": "Name three rivers.",
         *           "role": "user",
         *           "type": "message"
         *         }
         *       ],
         *       "metadata": {
         *         "topic": "rivers"
         *       }
         *     }
         */
        NewConversation: {
            /** @default null */
            items: (components["schemas"]["MessageItem"] | components["schemas"]["FunctionCallItem"] | components["schemas"]["FunctionOutputItem"] | components["schemas"]["CustomCallItem"] | components["schemas"]["CustomOutputItem"] | components["schemas"]["ReasoningItem"] | components["schemas"]["CompactionItem"])[] | null;
            /** @default null */
            metadata: {
                [key: string]: string;
            } | null;
        };
        /**
         * NewCorrection
         * @example {
         *       "picos": -25000000000000,
         *       "reason": "goodwill",
         *       "tenant": "northwind"
         *     }
         */
        NewCorrection: {
            adapter?: string | null;
            key_id?: string | null;
            /** @enum {null|string} */
            meter?: "input" | "cached_input" | "output" | "embedding" | null;
            model?: string | null;
            month?: string | null;
            picos?: number | null;
            project?: string | null;
            reason: string;
            request_id?: string | null;
            tenant?: string | null;
            tier?: string | null;
            tokens?: number | null;
        };
        /**
         * NewCredit
         * @example {
         *       "picos": 25000000000000,
         *       "reason": "goodwill",
         *       "tenant": "northwind"
         *     }
         */
        NewCredit: {
            adapter?: string | null;
            key_id?: string | null;
            /** @enum {null|string} */
            meter?: "input" | "cached_input" | "output" | "embedding" | null;
            model?: string | null;
            month?: string | null;
            picos: number | bigint;
            project?: string | null;
            reason: string;
            tenant: string;
            tier?: string | null;
        };
        /**
         * NewExport
         * @example {
         *       "month": "2026-01",
         *       "tenant": "northwind"
         *     }
         */
        NewExport: {
            /**
             * @default csv
             * @enum {string}
             */
            format: "csv" | "parquet" | "jsonl";
            /**
             * @default focus
             * @enum {string}
             */
            kind: "focus" | "events";
            month: string;
            tenant?: string | null;
        };
        /**
         * NewItems
         * @description Items that are added to a conversation.
         * @example {
         *       "items": [
         *         {
         *           "content": "Name three rivers.",
         *           "role": "user",
         *           "type": "message"
         *         }
         *       ]
         *     }
         */
        NewItems: {
            items: (components["schemas"]["MessageItem"] | components["schemas"]["FunctionCallItem"] | components["schemas"]["FunctionOutputItem"] | components["schemas"]["CustomCallItem"] | components["schemas"]["CustomOutputItem"] | components["schemas"]["ReasoningItem"] | components["schemas"]["CompactionItem"])[];
        };
        /**
         * NewKey
         * @example {
         *       "models": [
         *         "my-model"
         *       ],
         *       "name": "ci",
         *       "project": "search",
         *       "tags": {
         *         "team": "search"
         *       },
         *       "tenant": "northwind"
         *     }
         */
        NewKey: {
            allowed_ips?: string[] | null;
            break_glass?: boolean | null;
            default_max_tokens?: number | null;
            expires_at?: number | null;
            /**
             * @default live
             * @enum {string}
             */
            kind: "live" | "test" | "admin";
            models?: string[] | null;
            /** @default api */
            name: string;
            project?: string | null;
            /** @enum {null|string} */
            role?: "owner" | "operator" | "finance" | "tenant_admin" | "read_only" | null;
            scopes?: string[] | null;
            tags?: {
                [key: string]: string;
            };
            tenant?: string | null;
            tier?: string | null;
        };
        /** NewKeyView */
        NewKeyView: {
            allowed_ips?: string[] | null;
            break_glass: boolean;
            created_at: number;
            default_max_tokens: number | null;
            expires_at: number | null;
            first_key_id: string | null;
            id: string;
            kind: string;
            last4: string;
            last_used_at: number | null;
            models?: string[] | null;
            name: string;
            prefix: string;
            project_id: string | null;
            revoked_at: number | null;
            /** @enum {null|string} */
            role: "owner" | "operator" | "finance" | "tenant_admin" | "read_only" | null;
            rotated_to: string | null;
            scopes: string[];
            secret: string;
            tags?: {
                [key: string]: string;
            };
            tenant_id: string | null;
            tier: string | null;
        };
        /**
         * NewPayment
         * @example {
         *       "amount_minor": 11900,
         *       "reference": "bank 4711"
         *     }
         */
        NewPayment: {
            amount_minor: number;
            paid_at?: number | null;
            reference: string;
        };
        /**
         * NewPrice
         * @example {
         *       "input": 300000,
         *       "multipliers": {
         *         "premium": "3"
         *       },
         *       "output": 1200000,
         *       "subject": "my-model"
         *     }
         */
        NewPrice: {
            /** @default false */
            ahead: boolean;
            cached_input?: number | null;
            /** @default USD */
            currency: string;
            effective_from?: number | null;
            embedding?: number | null;
            input: number;
            multipliers?: {
                [key: string]: string;
            };
            output: number;
            subject: string;
            /**
             * @default model
             * @enum {string}
             */
            subject_kind: "model" | "adapter";
        };
        /**
         * NewProfile
         * @example {
         *       "address": [
         *         "Berlin"
         *       ],
         *       "legal_name": "Northwind GmbH",
         *       "taxes": [
         *         {
         *           "name": "VAT",
         *           "rate": "19"
         *         }
         *       ]
         *     }
         */
        NewProfile: {
            accounts?: {
                [key: string]: string;
            };
            address?: string[];
            legal_name?: string | null;
            payment_days?: number | null;
            tax_id?: string | null;
            taxes?: components["schemas"]["Tax"][];
        };
        /**
         * NewProject
         * @example {
         *       "name": "search",
         *       "tenant": "northwind"
         *     }
         */
        NewProject: {
            default_max_tokens?: number | null;
            name: string;
            tenant: string;
        };
        /**
         * NewTenant
         * @example {
         *       "currency": "EUR",
         *       "name": "Northwind",
         *       "slug": "northwind",
         *       "tier": "standard",
         *       "time_zone": "Europe/Berlin"
         *     }
         */
        NewTenant: {
            /** @default USD */
            currency: string;
            default_max_tokens?: number | null;
            name?: string | null;
            /** @default 1 */
            share_weight: number;
            slug: string;
            tier: string;
            /** @default UTC */
            time_zone: string;
        };
        /**
         * NewWebhook
         * @example {
         *       "tenant": "northwind",
         *       "url": "https://example.org/laneway"
         *     }
         */
        NewWebhook: {
            events?: string[];
            /** @default laneway */
            format: string;
            routing_key?: string | null;
            tenant?: string | null;
            url: string;
        };
        /** NewWebhookView */
        NewWebhookView: {
            active: boolean;
            created_at: number;
            events: string[];
            format: string;
            id: string;
            secret: string;
            tenant_id: string | null;
            url: string;
        };
        /**
         * OutputConfig
         * @description How the answer is made.
         */
        OutputConfig: {
            /** @default null */
            effort: string | null;
            /** @default null */
            format: components["schemas"]["SchemaFormat"] | null;
            /** @default null */
            task_budget: Record<string, never> | null;
        };
        /**
         * OutputExpiry
         * @description When the output files of a batch expire: `seconds` after they are created.
         */
        OutputExpiry: {
            /** @enum {unknown} */
            anchor: "created_at";
            seconds: number;
        };
        /**
         * OutputTextPart
         * @description A text of an earlier answer. `annotations`, `logprobs` and `parsed` are hints; the SDK adds `parsed`.
         */
        OutputTextPart: {
            /** @default null */
            annotations: unknown[] | null;
            /** @default null */
            logprobs: unknown[] | null;
            /** @default null */
            parsed: unknown;
            text: string;
            /** @enum {unknown} */
            type: "output_text";
        };
        /** OutputTokensDetails */
        OutputTokensDetails: {
            thinking_tokens: number;
        };
        /** OverviewView */
        OverviewView: {
            at: number;
            attention: components["schemas"]["Attention"][];
            engines: components["schemas"]["EngineCounts"] | null;
            money_budgets: number;
            spend: components["schemas"]["Spend"][];
            /** @enum {string} */
            status: "ok" | "degraded" | "down";
            today: components["schemas"]["Today"];
        };
        /** OwnBudgets */
        OwnBudgets: {
            data: components["schemas"]["BudgetView"][];
            /**
             * @default list
             * @constant
             */
            object: "list";
        };
        /** OwnLimits */
        OwnLimits: {
            batches: number | null;
            concurrency: number | null;
            enqueued_tokens: number | null;
            files: number | null;
            id: string;
            requests_per_minute: number | null;
            /** @enum {string} */
            scope: "key" | "tenant";
            subject_id: string;
            tenant_id: string;
            tokens_per_minute: number | null;
            total_file_bytes: number | null;
        };
        /** OwnUsage */
        OwnUsage: {
            cached_tokens: number;
            completion_tokens: number;
            cost_picos: {
                [key: string]: number | bigint;
            };
            device_s: number;
            end_time: number | null;
            key_id: string;
            /**
             * @default usage
             * @constant
             */
            object: "usage";
            preemptions: number;
            prompt_tokens: number;
            recomputed: {
                [key: string]: components["schemas"]["Recompute"];
            };
            requests: number;
            start_time: number | null;
            swapped_tokens: number;
        };
        /** Page[Adapter] */
        Page_Adapter: {
            data: components["schemas"]["Adapter"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[Alias] */
        Page_Alias: {
            data: components["schemas"]["Alias"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[AuditLineView] */
        Page_AuditLineView: {
            data: components["schemas"]["AuditLineView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[BatchView] */
        Page_BatchView: {
            data: components["schemas"]["BatchView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[ClosableView] */
        Page_ClosableView: {
            data: components["schemas"]["ClosableView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[ConnectorView] */
        Page_ConnectorView: {
            data: components["schemas"]["ConnectorView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[CorrectionView] */
        Page_CorrectionView: {
            data: components["schemas"]["CorrectionView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[EndUserView] */
        Page_EndUserView: {
            data: components["schemas"]["EndUserView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[ExportView] */
        Page_ExportView: {
            data: components["schemas"]["ExportView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[FileView] */
        Page_FileView: {
            data: components["schemas"]["FileView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[InvoiceView] */
        Page_InvoiceView: {
            data: components["schemas"]["InvoiceView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[Key] */
        Page_Key: {
            data: components["schemas"]["Key"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[ListedAlertView] */
        Page_ListedAlertView: {
            data: components["schemas"]["ListedAlertView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[ListedBudgetView] */
        Page_ListedBudgetView: {
            data: components["schemas"]["ListedBudgetView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[OwnLimits] */
        Page_OwnLimits: {
            data: components["schemas"]["OwnLimits"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[PeriodView] */
        Page_PeriodView: {
            data: components["schemas"]["PeriodView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[PersonView] */
        Page_PersonView: {
            data: components["schemas"]["PersonView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[PriceView] */
        Page_PriceView: {
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
        Page_ProjectView: {
            data: components["schemas"]["ProjectView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[ReconciliationView] */
        Page_ReconciliationView: {
            data: components["schemas"]["ReconciliationView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[RequestView] */
        Page_RequestView: {
            data: components["schemas"]["RequestView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[TenantProfileView] */
        Page_TenantProfileView: {
            data: components["schemas"]["TenantProfileView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[TenantView] */
        Page_TenantView: {
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
        Page_UsageView: {
            data: components["schemas"]["UsageView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[Version] */
        Page_Version: {
            data: components["schemas"]["Version"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Page[WebhookView] */
        Page_WebhookView: {
            data: components["schemas"]["WebhookView"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** Party */
        Party: {
            /** @default [] */
            address: string[];
            name: string;
            tax_id?: string | null;
        };
        /** PaymentView */
        PaymentView: {
            actor: string;
            created_at: number;
            id: string;
            invoice_id: string;
            minor: number;
            paid_at: number;
            reference: string;
            tenant_id: string;
        };
        /**
         * PeriodClosing
         * @example {
         *       "month": "2026-01",
         *       "tenant": "northwind"
         *     }
         */
        PeriodClosing: {
            month: string;
            tenant: string;
        };
        /** PeriodView */
        PeriodView: {
            closed_at: number | null;
            closed_by: string | null;
            closed_sequence: number | null;
            end_at: number;
            id: string;
            month: string;
            sequence_max: number | null;
            sequence_min: number | null;
            start_at: number;
            /** @enum {string} */
            state: "open" | "closed";
            tenant_id: string;
            time_zone: string;
        };
        /** PersonView */
        PersonView: {
            created_at: number;
            email: string | null;
            id: string;
            issuer: string;
            name: string | null;
            /** @enum {null|string} */
            role: "owner" | "operator" | "finance" | "tenant_admin" | "read_only" | null;
            signed_in_at: number;
            subject: string;
            tenant_id: string | null;
        };
        /** PhaseView */
        PhaseView: {
            /** @enum {string} */
            name: "gateway" | "adapter_load" | "queue" | "prefill" | "decode";
            seconds: number;
            start_s: number;
        };
        /** PlainTextPart */
        PlainTextPart: {
            text: string;
            /** @enum {unknown} */
            type: "text";
        };
        /** PreemptionCost */
        PreemptionCost: {
            by: string;
            device_s: number;
            recomputed_tokens: number;
        };
        /** Preview */
        Preview: {
            currency: string;
            month: string;
            sequence: number;
            tenants: components["schemas"]["TenantPreview"][];
            was_picos: number | bigint;
            would_picos: number | bigint;
        };
        /**
         * PricePreview
         * @example {
         *       "input": 300000,
         *       "month": "2026-01",
         *       "output": 1200000,
         *       "subject": "my-model"
         *     }
         */
        PricePreview: {
            /** @default false */
            ahead: boolean;
            cached_input?: number | null;
            /** @default USD */
            currency: string;
            effective_from?: number | null;
            embedding?: number | null;
            input: number;
            month?: string | null;
            multipliers?: {
                [key: string]: string;
            };
            output: number;
            subject: string;
            /**
             * @default model
             * @enum {string}
             */
            subject_kind: "model" | "adapter";
            tenant?: string | null;
        };
        /** PriceView */
        PriceView: {
            created_at: number;
            currency: string;
            effective_from: number;
            id: string;
            subject: string;
            /** @enum {string} */
            subject_kind: "model" | "adapter";
            tiers: {
                [key: string]: components["schemas"]["UnitPrices"];
            };
        };
        /**
         * ProjectChange
         * @example {
         *       "default_max_tokens": 512
         *     }
         */
        ProjectChange: {
            default_max_tokens?: number | null;
            name?: string | null;
        };
        /** ProjectView */
        ProjectView: {
            archived_at: number | null;
            created_at: number;
            default_max_tokens: number | null;
            id: string;
            name: string;
            tenant_id: string;
        };
        /**
         * Promotion
         * @example {
         *       "version": 2
         *     }
         */
        Promotion: {
            version: number | string;
        };
        /**
         * PromptLogprob
         * @description In vLLM's format. `rank`: 1 + the number of likelier ids.
         */
        PromptLogprob: {
            decoded_token: string;
            logprob: number;
            rank: number;
        };
        /** PromptTokensDetails */
        PromptTokensDetails: {
            /** @default 0 */
            audio_tokens: number;
            cached_tokens: number;
        };
        /** ProviderView */
        ProviderView: {
            name: string;
            start: string;
        };
        /** QualityLimitsView */
        QualityLimitsView: {
            layer_error_max: number;
            mean_kl_max: number;
            top1_min: number;
        };
        /** QueueCause */
        QueueCause: {
            device_s: number;
            tier: string;
        };
        /** QuotasView */
        QuotasView: {
            batches: number;
            enqueued_tokens: number;
            files: number;
            total_file_bytes: number;
        };
        /**
         * RankedDocument
         * @description Document `index` of the request. `relevance_score`: a cosine, from -1 to 1.
         */
        RankedDocument: {
            document?: components["schemas"]["RerankDocument"];
            index: number;
            relevance_score: number;
        };
        /** RateBucket */
        RateBucket: {
            end_time: number;
            errors: components["schemas"]["CodeCount"][];
            failed: number;
            failed_share: number | null;
            refused: number;
            refused_share: number | null;
            requests: number;
            settled: number;
            start_time: number;
        };
        /**
         * ReasoningItem
         * @description The reasoning of an earlier answer: `encrypted_content`, or else `content`, or else `summary`.
         */
        ReasoningItem: {
            /** @default null */
            content: components["schemas"]["ReasoningText"][] | null;
            /** @default null */
            encrypted_content: string | null;
            /** @default null */
            id: string | null;
            /** @default null */
            status: string | null;
            /** @default [] */
            summary: components["schemas"]["SummaryText"][];
            /** @enum {unknown} */
            type: "reasoning";
        };
        /**
         * ReasoningOptions
         * @description `effort`: as `reasoning_effort` of chat completions. `summary`: the reasoning is also its own summary. `context`
         *         is a hint.
         */
        ReasoningOptions: {
            /** @default null */
            context: string | null;
            /** @default null */
            effort: string | null;
            /** @default null */
            generate_summary: ("auto" | "concise" | "detailed") | null;
            /** @default null */
            max_tokens: number | null;
            /** @default null */
            summary: ("auto" | "concise" | "detailed") | null;
        };
        /** ReasoningText */
        ReasoningText: {
            text: string;
            /** @enum {unknown} */
            type: "reasoning_text";
        };
        /** ReasoningTokensDetails */
        ReasoningTokensDetails: {
            reasoning_tokens: number;
        };
        /** Recompute */
        Recompute: {
            device_s: number;
            tokens: number;
        };
        /** ReconciliationView */
        ReconciliationView: {
            at: number;
            engine_gap: number | null;
            imbalances: components["schemas"]["Imbalance"][];
            /** @enum {string} */
            kind: "minute" | "month" | "whole";
            number: number;
            overshot: string[];
            sequence_from: number;
            sequence_to: number;
            sound: boolean;
            sums: components["schemas"]["Sums"][];
            took_s: number;
        };
        /** RecoveryCodes */
        RecoveryCodes: {
            recovery_codes: string[];
        };
        /**
         * RedactedThinkingBlock
         * @description Reasoning that another service hid: it is left out.
         */
        RedactedThinkingBlock: {
            data: string;
            /** @enum {unknown} */
            type: "redacted_thinking";
        };
        /** RefusalPart */
        RefusalPart: {
            refusal: string;
            /** @enum {unknown} */
            type: "refusal";
        };
        /** RefusedClosing */
        RefusedClosing: {
            reason: string;
            tenant_id: string;
        };
        /** RequestCounts */
        RequestCounts: {
            completed: number;
            failed: number;
            total: number;
        };
        /** RequestErrorView */
        RequestErrorView: {
            code: string;
            limit_name: string | null;
            limit_value: number | null;
            message: string | null;
            param: string | null;
            retry_after_s: number | null;
            route: string;
            status: number;
        };
        /** RequestView */
        RequestView: {
            adapter: string | null;
            adapter_version: number | null;
            asked: string | null;
            batch_id: string | null;
            cached_tokens: number | null;
            completion_tokens: number | null;
            cost_picos: number | null;
            currency: string | null;
            device_s: number | null;
            duration_s: number | null;
            ended_at: number | null;
            ending: string | null;
            error: components["schemas"]["RequestErrorView"] | null;
            key_id: string;
            model: string;
            /** @enum {null|string} */
            outcome: "served" | "refused" | "failed" | null;
            preemptions: number | null;
            project_id: string | null;
            prompt_tokens: number;
            queue_s: number | null;
            request_id: string;
            started_at: number;
            /** @enum {string} */
            status: "held" | "settled" | "voided" | "expired" | "refused" | "failed";
            tenant_id: string;
            tier: string;
            trace_id: string | null;
            ttft_s: number | null;
        };
        /**
         * RerankAnswer
         * @description The nearest document first.
         */
        RerankAnswer: {
            id: string;
            model: string;
            results: components["schemas"]["RankedDocument"][];
            usage: components["schemas"]["EmbeddingUsage"];
        };
        /** RerankDocument */
        RerankDocument: {
            text: string;
        };
        /**
         * RerankRequest
         * @description Documents by the cosine of their embedding and the query's, the nearest first.
         * @example {
         *       "documents": [
         *         "The Rhine",
         *         "A dog"
         *       ],
         *       "model": "my-model",
         *       "query": "rivers",
         *       "top_n": 1
         *     }
         */
        RerankRequest: {
            documents: (string | components["schemas"]["RerankDocument"])[];
            /**
             * @description A document is one input: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            max_chunks_per_doc: null;
            /**
             * @description Documents are not truncated: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            max_tokens_per_doc: null;
            model: string;
            /**
             * @description Requests are ordered by service tier; use 'service_tier': only these values are accepted.
             * @default null
             */
            priority: null | 0;
            query: string;
            /** @default null */
            return_documents: boolean | null;
            /** @default null */
            service_tier: string | null;
            /** @default null */
            top_n: number | null;
            /**
             * @description Inputs are not truncated: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            truncate_prompt_tokens: null;
            /** @default null */
            user: string | null;
        };
        /**
         * ResponseCustomTool
         * @description A tool whose input is one text. `allowed_callers` and `defer_loading` are hints.
         */
        ResponseCustomTool: {
            /** @default null */
            allowed_callers: string[] | null;
            /** @default null */
            defer_loading: boolean | null;
            /** @default null */
            description: string | null;
            /** @default null */
            format: (components["schemas"]["TextInput"] | components["schemas"]["GrammaticalInput"]) | null;
            name: string;
            /** @enum {unknown} */
            type: "custom";
        };
        /** ResponseError */
        ResponseError: {
            code: string;
            message: string;
        };
        /**
         * ResponseEvent
         * @description An event of a stream. `type`: response.created, response.in_progress, response.output_item.added, and so on, to
         *         response.completed, response.incomplete or response.failed, which have the whole `response`.
         */
        ResponseEvent: {
            /** @default null */
            response: components["schemas"]["ResponseObject"] | null;
            sequence_number: number;
            type: string;
        };
        /**
         * ResponseFunction
         * @description `parameters`: a JSON Schema of an object. With `strict` the arguments follow it, or the request is refused.
         *         `allowed_callers`, `defer_loading` and `output_schema` are hints.
         */
        ResponseFunction: {
            /** @default null */
            allowed_callers: string[] | null;
            /** @default null */
            defer_loading: boolean | null;
            /** @default null */
            description: string | null;
            name: string;
            /** @default null */
            output_schema: Record<string, never> | null;
            /** @default null */
            parameters: Record<string, never> | null;
            /** @default null */
            strict: boolean | null;
            /** @enum {unknown} */
            type: "function";
        };
        /**
         * ResponseJsonObject
         * @description The answer is a JSON object.
         */
        ResponseJsonObject: {
            /** @enum {unknown} */
            type: "json_object";
        };
        /**
         * ResponseJsonSchema
         * @description The answer follows the schema; with `strict` it must have OpenAI's limits. `name`, `description`: hints.
         */
        ResponseJsonSchema: {
            /** @default null */
            description: string | null;
            name: string;
            schema: Record<string, never>;
            /** @default null */
            strict: boolean | null;
            /** @enum {unknown} */
            type: "json_schema";
        };
        /**
         * ResponseObject
         * @description A response. `output`: items of the types reasoning, message, function_call and custom_tool_call. The fields from
         *         `background` on repeat the request.
         */
        ResponseObject: {
            background: boolean;
            completed_at: number | null;
            conversation: components["schemas"]["ConversationReference"] | null;
            created_at: number;
            error: components["schemas"]["ResponseError"] | null;
            id: string;
            incomplete_details: components["schemas"]["IncompleteDetails"] | null;
            instructions: string | null;
            max_output_tokens: number | null;
            max_tool_calls: number | null;
            metadata: {
                [key: string]: string;
            };
            model: string;
            /** @enum {unknown} */
            object: "response";
            output: Record<string, never>[];
            parallel_tool_calls: boolean;
            previous_response_id: null;
            prompt_cache_key: string | null;
            reasoning: Record<string, never>;
            safety_identifier: string | null;
            service_tier: string;
            /** @enum {unknown} */
            status: "cancelled" | "completed" | "failed" | "in_progress" | "incomplete" | "queued";
            store: boolean;
            temperature: number;
            text: Record<string, never>;
            tool_choice: unknown;
            tools: Record<string, never>[];
            top_logprobs: number;
            top_p: number;
            /** @enum {unknown} */
            truncation: "disabled";
            usage: components["schemas"]["ResponseUsage"] | null;
            user: string | null;
        };
        /**
         * ResponseStreamOptions
         * @description A hint: no event is padded.
         */
        ResponseStreamOptions: {
            /** @default null */
            include_obfuscation: boolean | null;
        };
        /**
         * ResponseTextFormat
         * @description The answer is text.
         */
        ResponseTextFormat: {
            /** @enum {unknown} */
            type: "text";
        };
        /** ResponseUsage */
        ResponseUsage: {
            input_tokens: number;
            input_tokens_details: components["schemas"]["InputTokensDetails"];
            output_tokens: number;
            output_tokens_details: components["schemas"]["ReasoningTokensDetails"];
            total_tokens: number;
        };
        /**
         * ResponsesRequest
         * @description The body of a response. A field without a type is not served: only its neutral values are accepted.
         * @example {
         *       "input": "Name three rivers.",
         *       "max_output_tokens": 64,
         *       "model": "my-model"
         *     }
         */
        ResponsesRequest: {
            /** @default null */
            background: boolean | null;
            /** @default null */
            client_metadata: Record<string, never> | null;
            /**
             * @description The client compacts its own input: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            context_management: null;
            /** @default null */
            conversation: string | components["schemas"]["ConversationReference"] | null;
            /** @default null */
            include: string[] | null;
            input: string | (components["schemas"]["MessageItem"] | components["schemas"]["FunctionCallItem"] | components["schemas"]["FunctionOutputItem"] | components["schemas"]["CustomCallItem"] | components["schemas"]["CustomOutputItem"] | components["schemas"]["ReasoningItem"] | components["schemas"]["CompactionItem"])[];
            /** @default null */
            instructions: string | null;
            /** @default null */
            max_output_tokens: number | null;
            /** @default null */
            max_tool_calls: number | null;
            /** @default null */
            metadata: {
                [key: string]: string;
            } | null;
            model: string;
            /** @default null */
            parallel_tool_calls: boolean | null;
            /** @default null */
            previous_response_id: string | null;
            /**
             * @description Prompt templates are not stored; send 'instructions' and 'input': only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            prompt: null;
            /** @default null */
            prompt_cache_key: string | null;
            /** @default null */
            prompt_cache_options: Record<string, never> | null;
            /** @default null */
            prompt_cache_retention: string | null;
            /** @default null */
            reasoning: components["schemas"]["ReasoningOptions"] | null;
            /** @default null */
            safety_identifier: string | null;
            /** @default null */
            service_tier: string | null;
            /** @default null */
            store: boolean | null;
            /** @default null */
            stream: boolean | null;
            /** @default null */
            stream_options: components["schemas"]["ResponseStreamOptions"] | null;
            /** @default null */
            temperature: number | null;
            /** @default null */
            text: components["schemas"]["TextOptions"] | null;
            /** @default null */
            tool_choice: ("auto" | "none" | "required") | (components["schemas"]["ChosenFunction"] | components["schemas"]["ChosenCustom"] | components["schemas"]["AllowedResponseTools"]) | null;
            /** @default null */
            tools: (components["schemas"]["ResponseFunction"] | components["schemas"]["ResponseCustomTool"] | components["schemas"]["NamespaceTools"])[] | null;
            /**
             * @description Log probabilities are served by chat completions: only these values are accepted.
             * @default null
             */
            top_logprobs: null | 0;
            /** @default null */
            top_p: number | null;
            /**
             * @description Prompts are not truncated: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            truncation: null | "disabled" | "auto";
            /** @default null */
            user: string | null;
        };
        /**
         * Rotation
         * @example {
         *       "overlap_s": 86400
         *     }
         */
        Rotation: {
            /** @default 86400 */
            overlap_s: number;
        };
        /**
         * SchemaFormat
         * @description The text of the answer is JSON that the schema allows.
         */
        SchemaFormat: {
            schema: Record<string, never>;
            /** @enum {unknown} */
            type: "json_schema";
        };
        /**
         * SchemaSpec
         * @description `name` and `description` are hints. The answer follows the schema; with `strict` it must have OpenAI's limits.
         */
        SchemaSpec: {
            /** @default null */
            description: string | null;
            name: string;
            /** @default null */
            schema: Record<string, never> | null;
            /** @default null */
            strict: boolean | null;
        };
        /** ScoreAnswer */
        ScoreAnswer: {
            created: number;
            data: components["schemas"]["TextScore"][];
            id: string;
            model: string;
            /**
             * @default list
             * @enum {unknown}
             */
            object: "list";
            usage: components["schemas"]["EmbeddingUsage"];
        };
        /**
         * ScoreRequest
         * @description The cosine of the embeddings of two texts, for each pair: two lists of equal length, or one text and a list.
         * @example {
         *       "model": "my-model",
         *       "text_1": "rivers",
         *       "text_2": [
         *         "The Rhine",
         *         "A dog"
         *       ]
         *     }
         */
        ScoreRequest: {
            model: string;
            /**
             * @description Requests are ordered by service tier; use 'service_tier': only these values are accepted.
             * @default null
             */
            priority: null | 0;
            /** @default null */
            service_tier: string | null;
            text_1: string | string[];
            text_2: string | string[];
            /**
             * @description Inputs are not truncated: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            truncate_prompt_tokens: null;
            /** @default null */
            user: string | null;
        };
        /** SearchHit */
        SearchHit: {
            id: string;
            /** @enum {string} */
            kind: "tenant" | "project" | "key" | "request" | "invoice" | "adapter" | "model" | "alias" | "batch" | "file";
            name: string;
            note: string;
            tenant_id: string | null;
        };
        /** SearchView */
        SearchView: {
            data: components["schemas"]["SearchHit"][];
        };
        /**
         * ServedUsage
         * @description `service_tier`: the tier that served the request, by Anthropic's name.
         */
        ServedUsage: {
            /** @default 0 */
            cache_creation_input_tokens: number;
            /** @default 0 */
            cache_read_input_tokens: number;
            input_tokens: number;
            output_tokens: number;
            output_tokens_details?: components["schemas"]["OutputTokensDetails"];
            service_tier: string;
        };
        /** SessionKey */
        SessionKey: {
            id: string;
            last_four: string;
            name: string;
        };
        /** SessionPerson */
        SessionPerson: {
            email: string | null;
            id: string;
            name: string;
        };
        /** SessionTenant */
        SessionTenant: {
            id: string;
            name: string;
            slug: string;
        };
        /** SessionView */
        SessionView: {
            csrf_token: string;
            expires_at: number;
            key: components["schemas"]["SessionKey"] | null;
            permissions: string[];
            person: components["schemas"]["SessionPerson"] | null;
            /** @enum {string} */
            role: "owner" | "operator" | "finance" | "tenant_admin" | "read_only";
            tenant: components["schemas"]["SessionTenant"] | null;
        };
        /**
         * SignIn
         * @example {
         *       "key": "lw_admin_…"
         *     }
         */
        SignIn: {
            code?: string | null;
            key: string;
        };
        /** SignInOptions */
        SignInOptions: {
            provider: components["schemas"]["ProviderView"] | null;
        };
        /** SignatureDelta */
        SignatureDelta: {
            signature: string;
            /** @enum {unknown} */
            type: "signature_delta";
        };
        /** SlaDayView */
        SlaDayView: {
            date: string;
            end_time: number;
            itl_measured: number;
            itl_p50_ms: number | null;
            itl_p95_ms: number | null;
            itl_p99_ms: number | null;
            itl_within: number;
            pause_p99_ms: number | null;
            preemptions: number;
            refused: number;
            requests: number;
            start_time: number;
            ttft_measured: number;
            ttft_p50_ms: number | null;
            ttft_p95_ms: number | null;
            ttft_p99_ms: number | null;
            ttft_within: number;
            unanswered: number;
            /** @enum {string} */
            verdict: "kept" | "missed" | "not_measured" | "no_traffic";
        };
        /** SlaFigures */
        SlaFigures: {
            itl_measured: number;
            itl_p50_ms: number | null;
            itl_p95_ms: number | null;
            itl_p99_ms: number | null;
            itl_within: number;
            pause_p99_ms: number | null;
            preemptions: number;
            refused: number;
            requests: number;
            ttft_measured: number;
            ttft_p50_ms: number | null;
            ttft_p95_ms: number | null;
            ttft_p99_ms: number | null;
            ttft_within: number;
            unanswered: number;
            /** @enum {string} */
            verdict: "kept" | "missed" | "not_measured" | "no_traffic";
        };
        /** SlaGroupView */
        SlaGroupView: {
            days: components["schemas"]["SlaDayView"][];
            model: string | null;
            tier: string;
            total: components["schemas"]["SlaFigures"];
        };
        /** SlaView */
        SlaView: {
            accuracy: number;
            as_of: number | null;
            data: components["schemas"]["SlaGroupView"][];
            end_date: string;
            /**
             * @default sla_report
             * @constant
             */
            object: "sla_report";
            objective: number;
            recorded_since: number | null;
            start_date: string;
            tenant: string | null;
            tenant_id: string | null;
            time_zone: string;
        };
        /** SlownessView */
        SlownessView: {
            phases: components["schemas"]["PhaseView"][];
            preempted_by: components["schemas"]["PreemptionCost"][];
            preemptions: number;
            queued_behind: components["schemas"]["QueueCause"][];
            verdict: components["schemas"]["VerdictView"] | null;
            weights_s: number | null;
        };
        /** Spend */
        Spend: {
            budget: string;
            currency: string;
            held_picos: number | bigint;
            /** @enum {string} */
            kind: "hard" | "soft";
            left_picos: number | bigint;
            limit_picos: number | bigint;
            /** @enum {string} */
            period: "day" | "month" | "total";
            posted_picos: number | bigint;
            run_out_at: number | null;
            /** @enum {string} */
            scope: "tenant" | "project" | "key";
            scope_id: string;
            tenant: string;
            tenant_id: string;
            window_end: number | null;
        };
        /** StandingView */
        StandingView: {
            at: number | null;
            imbalances: number;
            overshot: number;
        };
        /** StreamOptions */
        StreamOptions: {
            /** @default null */
            continuous_usage_stats: unknown;
            /** @default null */
            include_obfuscation: unknown;
            /** @default null */
            include_usage: boolean | null;
        };
        /**
         * StructuredOutputs
         * @description vLLM's constraints of the answer's text; at most one of them. A field without a type is not served: only its
         *         neutral values are accepted.
         */
        StructuredOutputs: {
            /** @default null */
            choice: string[] | null;
            /** @default null */
            disable_additional_properties: unknown;
            /** @default null */
            disable_any_whitespace: boolean | null;
            /** @default null */
            disable_fallback: boolean | null;
            /** @default null */
            grammar: string | null;
            /** @default null */
            json: (Record<string, never> | string) | null;
            /** @default null */
            json_object: boolean | null;
            /** @default null */
            regex: string | null;
            /** @default null */
            structural_tag: unknown;
            /** @default null */
            whitespace_pattern: unknown;
        };
        /** SummaryText */
        SummaryText: {
            text: string;
            /** @enum {unknown} */
            type: "summary_text";
        };
        /** Sums */
        Sums: {
            currency: string;
            entered_picos: number | bigint;
            owed_picos: number | bigint;
            transactions: number;
        };
        /** SystemMessage */
        SystemMessage: {
            content: string | components["schemas"]["TextPart"][];
            /** @default null */
            name: string | null;
            /** @enum {unknown} */
            role: "system";
        };
        /** TargetSection */
        TargetSection: {
            model: string;
            /** @default 1 */
            weight: number;
        };
        /** Tax */
        Tax: {
            name: string;
            rate: string;
        };
        /** TaxLine */
        TaxLine: {
            minor: number;
            name: string;
            rate: string;
        };
        /**
         * TenantChange
         * @example {
         *       "allowed_ips": [
         *         "192.0.2.0/24"
         *       ],
         *       "tier": "premium"
         *     }
         */
        TenantChange: {
            allowed_ips?: string[] | null;
            cheapest?: boolean | null;
            default_max_tokens?: number | null;
            name?: string | null;
            on_budget?: ("wait" | "fail") | null;
            share_weight?: number | null;
            /** @enum {null|string} */
            status?: "active" | "suspended" | null;
            store_responses_s?: number | null;
            tier?: string | null;
            time_zone?: string | null;
        };
        /** TenantPreview */
        TenantPreview: {
            requests: number;
            tenant_id: string;
            was_picos: number | bigint;
            would_picos: number | bigint;
        };
        /** TenantProfileView */
        TenantProfileView: {
            accounts: {
                [key: string]: string;
            };
            address: string[];
            is_set: boolean;
            legal_name: string | null;
            name: string;
            payment_days: number | null;
            slug: string;
            tax_id: string | null;
            taxes: components["schemas"]["Tax"][];
            tenant_id: string;
        };
        /** TenantView */
        TenantView: {
            allowed_ips: string[] | null;
            archived_at: number | null;
            cheapest: boolean;
            created_at: number;
            currency: string;
            default_max_tokens: number | null;
            id: string;
            name: string;
            /** @enum {null|string} */
            on_budget: "wait" | "fail" | null;
            share_weight: number;
            slug: string;
            /** @enum {string} */
            status: "active" | "suspended";
            store_responses_s: number | null;
            tier: string;
            time_zone: string;
        };
        /**
         * TextBlock
         * @description A text of a request. A block that Laneway returned is accepted too.
         */
        TextBlock: {
            /** @default null */
            cache_control: components["schemas"]["CacheControl"] | null;
            /** @default null */
            citations: unknown[] | null;
            text: string;
            /** @enum {unknown} */
            type: "text";
        };
        /**
         * TextContent
         * @description A text of an answer. It has no `citations`: @ai-sdk/anthropic refuses the field if it is null.
         */
        TextContent: {
            text: string;
            /** @enum {unknown} */
            type: "text";
        };
        /** TextDelta */
        TextDelta: {
            text: string;
            /** @enum {unknown} */
            type: "text_delta";
        };
        /**
         * TextFormat
         * @description The answer is text.
         */
        TextFormat: {
            /** @enum {unknown} */
            type: "text";
        };
        /**
         * TextInput
         * @description The input is any text.
         */
        TextInput: {
            /** @enum {unknown} */
            type: "text";
        };
        /**
         * TextOptions
         * @description `verbosity` is a hint.
         */
        TextOptions: {
            /** @default null */
            format: (components["schemas"]["ResponseTextFormat"] | components["schemas"]["ResponseJsonObject"] | components["schemas"]["ResponseJsonSchema"]) | null;
            /** @default null */
            verbosity: string | null;
        };
        /** TextPart */
        TextPart: {
            text: string;
            /** @enum {unknown} */
            type: "text";
        };
        /**
         * TextScore
         * @description The cosine of pair `index`, from -1 to 1.
         */
        TextScore: {
            index: number;
            /**
             * @default score
             * @enum {unknown}
             */
            object: "score";
            score: number;
        };
        /**
         * Thinking
         * @description `budget_tokens`: of the type `enabled`. `display`: whether the answer shows the thinking.
         */
        Thinking: {
            /** @default null */
            budget_tokens: number | null;
            /** @default null */
            display: string | null;
            /** @enum {unknown} */
            type: "adaptive" | "between_tools" | "disabled" | "enabled";
        };
        /**
         * ThinkingBlock
         * @description The reasoning of an earlier answer.
         */
        ThinkingBlock: {
            /** @default null */
            signature: string | null;
            thinking: string;
            /** @enum {unknown} */
            type: "thinking";
        };
        /**
         * ThinkingContent
         * @description The reasoning of an answer. `signature` lets a client send the block back; Laneway does not check it.
         */
        ThinkingContent: {
            signature: string;
            thinking: string;
            /** @enum {unknown} */
            type: "thinking";
        };
        /** ThinkingDelta */
        ThinkingDelta: {
            thinking: string;
            /** @enum {unknown} */
            type: "thinking_delta";
        };
        /** TierMargin */
        TierMargin: {
            correction_picos: number | bigint;
            cost_picos: number | bigint;
            currency: string;
            device_s: number;
            margin_picos: number | bigint;
            preempted_tokens: number;
            preemption_picos: number | bigint;
            preemption_s: number;
            requests: number;
            tier: string | null;
            usage_picos: number | bigint;
        };
        /** TierTargets */
        TierTargets: {
            inter_token_ms: number;
            ttft_base_ms: number;
            ttft_per_1k_prompt_tokens_ms: number;
        };
        /** TierView */
        TierView: {
            attainment: components["schemas"]["Attainment"][];
            floor: number;
            name: string;
            preemptible: boolean;
            preemptions_max: number;
            queue_max: number;
            queue_target_ms: number | null;
            rank: number;
            service_tier: string;
            targets: components["schemas"]["TierTargets"];
        };
        /** TiersView */
        TiersView: {
            data: components["schemas"]["TierView"][];
            /**
             * @default list
             * @constant
             */
            object: "list";
            recorded_since: number | null;
        };
        /** Today */
        Today: {
            as_of: number | null;
            cost_picos: {
                [key: string]: number | bigint;
            };
            requests: number;
            series: components["schemas"]["Hour"][];
            tokens: number;
        };
        /** TokenCount */
        TokenCount: {
            input_tokens: number;
        };
        /**
         * TokenLogprob
         * @description One token of the answer, and the likeliest tokens at its position, likeliest first.
         */
        TokenLogprob: {
            bytes: number[];
            logprob: number;
            token: string;
            top_logprobs: components["schemas"]["Alternative"][];
        };
        /** TokenizeAnswer */
        TokenizeAnswer: {
            count: number;
            max_model_len: number;
            token_strs: string[] | null;
            tokens: number[];
        };
        /**
         * TokenizeRequest
         * @description A text as `/v1/completions` reads it (`prompt`), or a conversation as `/v1/chat/completions` reads it.
         * @example {
         *       "model": "my-model",
         *       "prompt": "Three rivers are"
         *     }
         */
        TokenizeRequest: {
            /** @default null */
            add_generation_prompt: boolean | null;
            /** @default null */
            add_special_tokens: boolean | null;
            /**
             * @description The model's own chat template is used: only these values are accepted.
             * @default null
             * @enum {unknown}
             */
            chat_template: null;
            /** @default null */
            chat_template_kwargs: Record<string, never> | null;
            /** @default null */
            continue_final_message: boolean | null;
            /**
             * @description Input is text only: only these values are accepted.
             * @default null
             */
            media_io_kwargs: null | Record<string, never>;
            /** @default null */
            messages: (components["schemas"]["SystemMessage"] | components["schemas"]["DeveloperMessage"] | components["schemas"]["UserMessage"] | components["schemas"]["AssistantMessage"] | components["schemas"]["ToolMessage"])[] | null;
            /**
             * @description Input is text only: only these values are accepted.
             * @default null
             */
            mm_processor_kwargs: null | Record<string, never>;
            model: string;
            /** @default null */
            prompt: string | null;
            /** @default null */
            return_token_strs: boolean | null;
            /** @default null */
            tools: (components["schemas"]["FunctionTool"] | components["schemas"]["CustomTool"])[] | null;
        };
        /**
         * Tool
         * @description A tool that the client runs. Tools of another `type` are run by Anthropic's service: they are left out of the
         *         prompt and named in `laneway-ignored`.
         */
        Tool: {
            /** @default null */
            allowed_callers: string[] | null;
            /** @default null */
            cache_control: components["schemas"]["CacheControl"] | null;
            /** @default null */
            defer_loading: boolean | null;
            /** @default null */
            description: string | null;
            /** @default null */
            eager_input_streaming: boolean | null;
            /** @default null */
            input_examples: unknown[] | null;
            /** @default null */
            input_schema: Record<string, never> | null;
            name: string;
            /** @default null */
            strict: boolean | null;
            /** @default null */
            type: string | null;
        };
        /**
         * ToolMessage
         * @description The result of a call of the assistant's.
         */
        ToolMessage: {
            content: string | components["schemas"]["TextPart"][];
            /** @default null */
            name: string | null;
            /** @enum {unknown} */
            role: "tool";
            tool_call_id: string;
        };
        /**
         * ToolResultBlock
         * @description The result of a call.
         */
        ToolResultBlock: {
            /** @default null */
            cache_control: components["schemas"]["CacheControl"] | null;
            /** @default null */
            content: string | components["schemas"]["TextBlock"][] | null;
            /** @default null */
            is_error: boolean | null;
            tool_use_id: string;
            /** @enum {unknown} */
            type: "tool_result";
        };
        /**
         * ToolUseBlock
         * @description A call of an earlier answer.
         */
        ToolUseBlock: {
            /** @default null */
            cache_control: components["schemas"]["CacheControl"] | null;
            /** @default null */
            caller: Record<string, never> | null;
            id: string;
            input: Record<string, never>;
            name: string;
            /** @enum {unknown} */
            type: "tool_use";
        };
        /** ToolUseContent */
        ToolUseContent: {
            id: string;
            input: Record<string, never>;
            name: string;
            /** @enum {unknown} */
            type: "tool_use";
        };
        /** Totals */
        Totals: {
            cached_tokens: number;
            completion_tokens: number;
            cost_picos: {
                [key: string]: number | bigint;
            };
            device_s: number;
            discarded_tokens: number;
            embedding_tokens: number;
            made_tokens: number;
            preemptions: number;
            prompt_tokens: number;
            recomputed: {
                [key: string]: components["schemas"]["Recompute"];
            };
            requests: number;
            swapped_tokens: number;
        };
        /**
         * TotpCode
         * @example {
         *       "code": "123456"
         *     }
         */
        TotpCode: {
            code: string;
        };
        /** TotpSecret */
        TotpSecret: {
            secret: string;
            uri: string;
        };
        /** UnitPrices */
        UnitPrices: {
            cached_input: number;
            embedding: number;
            input: number;
            output: number;
        };
        /** UploadView */
        UploadView: {
            /** @default 0 */
            bytes_received: number;
            bytes_total: number | null;
            id: string;
            key_id: string;
            started_at: number;
            /**
             * @default receiving
             * @enum {string}
             */
            state: "receiving" | "checking";
            tenant_id: string | null;
        };
        /** Usage */
        Usage: {
            completion_tokens: number;
            /**
             * @default {
             *       "accepted_prediction_tokens": 0,
             *       "audio_tokens": 0,
             *       "reasoning_tokens": 0,
             *       "rejected_prediction_tokens": 0
             *     }
             */
            completion_tokens_details: components["schemas"]["CompletionTokensDetails"];
            prompt_tokens: number;
            prompt_tokens_details: components["schemas"]["PromptTokensDetails"];
            total_tokens: number;
        };
        /** UsageBucket */
        UsageBucket: {
            end_time: number;
            /**
             * @default bucket
             * @constant
             */
            object: "bucket";
            results: components["schemas"]["UsageResult"][];
            start_time: number;
        };
        /** UsagePage */
        UsagePage: {
            data: components["schemas"]["UsageBucket"][];
            has_more: boolean;
            next_page: string | null;
            /**
             * @default page
             * @constant
             */
            object: "page";
        };
        /** UsageResult */
        UsageResult: {
            adapter?: string | null;
            api_key_id?: string | null;
            batch?: boolean | null;
            cost_picos: number | bigint;
            currency: string;
            device_s: number;
            discarded_tokens: number;
            embedding_tokens: number;
            /** @default 0 */
            input_audio_tokens: number;
            input_cached_tokens: number;
            input_tokens: number;
            made_tokens: number;
            model?: string | null;
            num_model_requests: number;
            /**
             * @default organization.usage.completions.result
             * @constant
             */
            object: "organization.usage.completions.result";
            /** @default 0 */
            output_audio_tokens: number;
            output_tokens: number;
            preemptions: number;
            project_id?: string | null;
            service_tier?: string | null;
            tags?: {
                [key: string]: string | null;
            } | null;
            tenant_id?: string | null;
            tier?: string | null;
            user_id?: null;
        };
        /** UsageView */
        UsageView: {
            adapter: string | null;
            adapter_version: number | null;
            asked: string | null;
            batch_id: string | null;
            cached_tokens: number;
            completion_tokens: number;
            cost_picos: number | bigint;
            currency: string;
            device_s: number;
            discard_reason: string | null;
            discarded_tokens: number;
            duration_s: number;
            ending: string;
            finished_at: number;
            itl_s: number | null;
            itl_target_s: number | null;
            key_id: string;
            load_s: number | null;
            made_tokens: number;
            model: string;
            /** @enum {string} */
            operation: "text" | "embedding";
            pause_s: number | null;
            preemptions: number;
            price_version_id: string;
            project_id: string | null;
            prompt_tokens: number;
            queue_device_s: {
                [key: string]: number;
            };
            queue_s: number;
            recomputed: {
                [key: string]: components["schemas"]["Recompute"];
            };
            recomputed_tokens: number;
            request_id: string;
            sequence: number;
            started_at: number;
            submitted_s: number | null;
            swapped_tokens: number;
            tags: {
                [key: string]: string;
            };
            tenant_id: string;
            tier: string;
            trace_id: string | null;
            ttft_s: number;
            ttft_target_s: number | null;
            weights_s: number | null;
        };
        /** UserMessage */
        UserMessage: {
            content: string | components["schemas"]["TextPart"][];
            /** @default null */
            name: string | null;
            /** @enum {unknown} */
            role: "user";
        };
        /** VerdictView */
        VerdictView: {
            /** @enum {string} */
            basis: "request" | "today";
            inter_token_met: boolean | null;
            inter_token_s: number | null;
            inter_token_target_s: number;
            ttft_met: boolean | null;
            ttft_target_s: number;
        };
        /** Version */
        Version: {
            adapter_id: string;
            bytes: number | null;
            created_at: number;
            digest: string;
            number: number;
            parameters: number | null;
            rank_max: number | null;
            removed_at: number | null;
            replaced: number | null;
            targets: string[];
            trained_for: string | null;
            warnings: string[];
        };
        /**
         * WebhookChange
         * @example {
         *       "active": false
         *     }
         */
        WebhookChange: {
            active?: boolean | null;
            events?: string[] | null;
            url?: string | null;
        };
        /** WebhookTestResult */
        WebhookTestResult: {
            delivered: boolean;
            duration_s: number;
            error: string | null;
            event_id: string;
            status: number | null;
        };
        /** WebhookView */
        WebhookView: {
            active: boolean;
            created_at: number;
            events: string[];
            format: string;
            id: string;
            tenant_id: string | null;
            url: string;
        };
        /** WholeCorrectionView */
        WholeCorrectionView: {
            actor: string;
            adapter: string | null;
            counted_at: number;
            created_at: number;
            currency: string;
            document: components["schemas"]["DocumentView"] | null;
            id: string;
            key_id: string | null;
            meter: string | null;
            model: string | null;
            month?: string | null;
            number?: string | null;
            period_id: string;
            picos: number | bigint;
            project_id: string | null;
            reason: string;
            request_id: string | null;
            tenant_id: string;
            tier: string | null;
            tokens: number;
        };
        /** WholeInvoiceView */
        WholeInvoiceView: {
            correction_picos: number | bigint;
            currency: string;
            document: components["schemas"]["DocumentView"] | null;
            id: string;
            issued_at: number;
            lines: components["schemas"]["LineView"][];
            paid_minor: number;
            /** @enum {null|string} */
            payment: "unpaid" | "partly_paid" | "paid" | "overdue" | "nothing_due" | null;
            payments: components["schemas"]["PaymentView"][];
            period: components["schemas"]["PeriodView"];
            tenant_id: string;
            total_picos: number | bigint;
            usage_picos: number | bigint;
        };
        /** WholeRequestView */
        WholeRequestView: {
            adapter: string | null;
            adapter_version: number | null;
            asked: string | null;
            batch_id: string | null;
            cached_tokens: number | null;
            completion_tokens: number | null;
            corrections: components["schemas"]["CorrectionView"][];
            cost_picos: number | null;
            currency: string | null;
            device_s: number | null;
            duration_s: number | null;
            ended_at: number | null;
            ending: string | null;
            entries: components["schemas"]["EntryView"][];
            error: components["schemas"]["RequestErrorView"] | null;
            hold: components["schemas"]["HoldView"];
            key_id: string;
            model: string;
            /** @enum {null|string} */
            outcome: "served" | "refused" | "failed" | null;
            preemptions: number | null;
            project_id: string | null;
            prompt_tokens: number;
            queue_s: number | null;
            request_id: string;
            slowness: components["schemas"]["SlownessView"] | null;
            started_at: number;
            /** @enum {string} */
            status: "held" | "settled" | "voided" | "expired" | "refused" | "failed";
            tenant_id: string;
            tier: string;
            trace_id: string | null;
            ttft_s: number | null;
            usage: components["schemas"]["UsageView"] | null;
        };
        /** WindowView */
        WindowView: {
            budget_id: string;
            window_start: number;
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
    GetHealth: {
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
    GetLiveness: {
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
    GetReadiness: {
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
    GetMetrics: {
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
    ListBatchesForTenant: {
        parameters: {
            query?: {
                after?: string | null;
                limit?: number;
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
                    "application/json": components["schemas"]["BatchList"];
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
    CreateBatchForTenant: {
        parameters: {
            query?: never;
            header?: {
                /** @description A request that repeats an Idempotency-Key within a day gets the batch of the first request, in its present state. */
                "Idempotency-Key"?: string;
            };
            path: {
                tenant: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["BatchRequest"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["BatchObject"];
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
    GetBatchForTenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                batch: string;
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
                    "application/json": components["schemas"]["BatchObject"];
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
    CancelBatchForTenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                batch: string;
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
                    "application/json": components["schemas"]["BatchObject"];
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
    ListBudgetsForTenant: {
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
    CreateChatCompletionForTenant: {
        parameters: {
            query?: never;
            header?: {
                /** @description A request that does not stream and repeats an Idempotency-Key within ten minutes gets the first answer again. */
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
            /** @description Server-sent events: `data: ` with a ChatCompletionChunk each, then `data: [DONE]`; an error event ends the stream. */
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
    CreateCompletionForTenant: {
        parameters: {
            query?: never;
            header?: {
                /** @description A request that does not stream and repeats an Idempotency-Key within ten minutes gets the first answer again. */
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
            /** @description Server-sent events: `data: ` with a Completion each, then `data: [DONE]`; an error event ends the stream. */
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
    CreateConversationForTenant: {
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
                "application/json": components["schemas"]["NewConversation"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ConversationObject"];
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
    GetConversationForTenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                conversation: string;
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
                    "application/json": components["schemas"]["ConversationObject"];
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
    UpdateConversationForTenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                conversation: string;
                tenant: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ConversationChange"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ConversationObject"];
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
    DeleteConversationForTenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                conversation: string;
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
                    "application/json": components["schemas"]["DeletedConversation"];
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
    ListConversationItemsForTenant: {
        parameters: {
            query?: {
                after?: string | null;
                limit?: number;
                order?: "asc" | "desc";
            };
            header?: never;
            path: {
                conversation: string;
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
                    "application/json": components["schemas"]["ConversationItemList"];
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
    AddConversationItemsForTenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                conversation: string;
                tenant: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewItems"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ConversationItemList"];
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
    GetConversationItemForTenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                conversation: string;
                item: string;
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
                    "application/json": {
                        [key: string]: unknown;
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
    DeleteConversationItemForTenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                conversation: string;
                item: string;
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
                    "application/json": components["schemas"]["ConversationObject"];
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
    DetokenizeForTenant: {
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
                "application/json": components["schemas"]["DetokenizeRequest"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["DetokenizeAnswer"];
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
    CreateEmbeddingsForTenant: {
        parameters: {
            query?: never;
            header?: {
                /** @description A request that does not stream and repeats an Idempotency-Key within ten minutes gets the first answer again. */
                "Idempotency-Key"?: string;
            };
            path: {
                tenant: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["EmbeddingsRequest"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["EmbeddingList"];
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
    ListFilesForTenant: {
        parameters: {
            query?: {
                after?: string | null;
                limit?: number;
                order?: "asc" | "desc";
                purpose?: "batch" | "batch_output" | null;
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
                    "application/json": components["schemas"]["FileList"];
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
    UploadFileForTenant: {
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
                "multipart/form-data": {
                    /** @enum {string} */
                    "expires_after[anchor]"?: "created_at";
                    "expires_after[seconds]"?: number;
                    /** Format: binary */
                    file: string;
                    /** @enum {string} */
                    purpose: "batch";
                };
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["FileObject"];
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
    GetFileForTenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                file: string;
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
                    "application/json": components["schemas"]["FileObject"];
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
    DeleteFileForTenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                file: string;
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
                    "application/json": components["schemas"]["DeletedFile"];
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
    GetFileContentForTenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                file: string;
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The content of the file */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/octet-stream": string;
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
    CreateMessageForTenant: {
        parameters: {
            query?: never;
            header?: {
                /** @description A request that does not stream and repeats an Idempotency-Key within ten minutes gets the first answer again. */
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
            /** @description Server-sent events, named by their type, from message_start to message_stop; an error event ends the stream. */
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
    ListMessageBatchesForTenant: {
        parameters: {
            query?: {
                after_id?: string | null;
                before_id?: string | null;
                limit?: number;
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
                    "application/json": components["schemas"]["MessageBatchPage"];
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
    CreateMessageBatchForTenant: {
        parameters: {
            query?: never;
            header?: {
                /** @description A request that repeats an Idempotency-Key within a day gets the batch of the first request, in its present state. */
                "Idempotency-Key"?: string;
            };
            path: {
                tenant: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["MessageBatchRequest"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["MessageBatchObject"];
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
    GetMessageBatchForTenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                batch: string;
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
                    "application/json": components["schemas"]["MessageBatchObject"];
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
    DeleteMessageBatchForTenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                batch: string;
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
                    "application/json": components["schemas"]["DeletedMessageBatch"];
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
    CancelMessageBatchForTenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                batch: string;
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
                    "application/json": components["schemas"]["MessageBatchObject"];
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
    GetMessageBatchResultsForTenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                batch: string;
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The content of the file */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/octet-stream": string;
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
    CountTokensForTenant: {
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
    ListModelsForTenant: {
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
    GetModelForTenant: {
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
    RerankForTenant: {
        parameters: {
            query?: never;
            header?: {
                /** @description A request that does not stream and repeats an Idempotency-Key within ten minutes gets the first answer again. */
                "Idempotency-Key"?: string;
            };
            path: {
                tenant: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["RerankRequest"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RerankAnswer"];
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
    CreateResponseForTenant: {
        parameters: {
            query?: never;
            header?: {
                /** @description A request that does not stream and repeats an Idempotency-Key within ten minutes gets the first answer again. */
                "Idempotency-Key"?: string;
            };
            path: {
                tenant: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ResponsesRequest"];
            };
        };
        responses: {
            /** @description Server-sent events, named by their type and numbered by `sequence_number`, from response.created to response.completed, response.incomplete or response.failed. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ResponseObject"];
                    "text/event-stream": components["schemas"]["ResponseEvent"];
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
    CompactConversationForTenant: {
        parameters: {
            query?: never;
            header?: {
                /** @description A request that does not stream and repeats an Idempotency-Key within ten minutes gets the first answer again. */
                "Idempotency-Key"?: string;
            };
            path: {
                tenant: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CompactRequest"];
            };
        };
        responses: {
            /** @description The compacted conversation */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CompactedResponse"];
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
    CountInputTokensForTenant: {
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
                "application/json": components["schemas"]["ResponsesRequest"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["InputTokens"];
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
    GetResponseForTenant: {
        parameters: {
            query?: {
                stream?: boolean;
                starting_after?: number | null;
            };
            header?: never;
            path: {
                response: string;
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Server-sent events, named by their type and numbered by `sequence_number`, from response.created to response.completed, response.incomplete or response.failed. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ResponseObject"];
                    "text/event-stream": components["schemas"]["ResponseEvent"];
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
    DeleteResponseForTenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                response: string;
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
                    "application/json": components["schemas"]["DeletedResponse"];
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
    CancelResponseForTenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                response: string;
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ResponseObject"];
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
    ListInputItemsForTenant: {
        parameters: {
            query?: {
                after?: string | null;
                limit?: number;
                order?: "asc" | "desc";
            };
            header?: never;
            path: {
                response: string;
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
                    "application/json": components["schemas"]["InputItems"];
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
    ScoreForTenant: {
        parameters: {
            query?: never;
            header?: {
                /** @description A request that does not stream and repeats an Idempotency-Key within ten minutes gets the first answer again. */
                "Idempotency-Key"?: string;
            };
            path: {
                tenant: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ScoreRequest"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ScoreAnswer"];
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
    TokenizeForTenant: {
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
                "application/json": components["schemas"]["TokenizeRequest"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TokenizeAnswer"];
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
    GetUsageForTenant: {
        parameters: {
            query?: {
                /** @description Unix seconds */
                start_time?: number | null;
                /** @description Unix seconds */
                end_time?: number | null;
                /** @description true: lines of batches; false: all other requests */
                batch?: boolean | null;
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
    AdminListAdapters: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                name?: string | null;
                /** @description part of a name or an id; case does not count */
                search?: string | null;
                sort?: "name" | "-name" | "base_model" | "-base_model" | "version" | "-version" | "created_at" | "-created_at";
                limit?: number;
                /** @description `next_page` of the previous page */
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
                    "application/json": components["schemas"]["Page_Adapter"];
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
    AdminUploadAdapter: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
                    base?: string;
                    name: string;
                    notes?: string;
                    /** @enum {string} */
                    pinned?: "true" | "1" | "false" | "0";
                    /** @enum {string} */
                    promote?: "true" | "1" | "false" | "0";
                    /** @description tenants (ids or slugs), separated by commas; * for all */
                    shared?: string;
                    tenant?: string;
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
    AdminCheckAdapter: {
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
                    base?: string;
                    name?: string;
                    notes?: string;
                    /** @enum {string} */
                    pinned?: "true" | "1" | "false" | "0";
                    /** @enum {string} */
                    promote?: "true" | "1" | "false" | "0";
                    /** @description tenants (ids or slugs), separated by commas; * for all */
                    shared?: string;
                    tenant?: string;
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
    AdminListAdapterUploads: {
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
    AdminGetAdapter: {
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
    AdminRemoveAdapter: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminChangeAdapter: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminPromoteAdapter: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminRollBackAdapter: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminGetAdapterUse: {
        parameters: {
            query?: {
                /** @description of settled requests, until now */
                days?: number;
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
                    "application/json": components["schemas"]["ArmsView"];
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
    AdminListAdapterVersions: {
        parameters: {
            query?: {
                limit?: number;
                /** @description `next_page` of the previous page */
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
                    "application/json": components["schemas"]["Page_Version"];
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
    AdminGetAdapterVersion: {
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
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Version"];
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
    AdminRemoveAdapterVersion: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminListAlerts: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                limit?: number;
                /** @description `next_page` of the previous page */
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
                    "application/json": components["schemas"]["Page_ListedAlertView"];
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
    AdminGetAlert: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                alert_id: string;
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
                    "application/json": components["schemas"]["ListedAlertView"];
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
    AdminGetAliasUse: {
        parameters: {
            query?: {
                /** @description of settled requests, until now */
                days?: number;
            };
            header?: never;
            path: {
                alias: string;
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
                    "application/json": components["schemas"]["ArmsView"];
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
    AdminListAliases: {
        parameters: {
            query?: {
                limit?: number;
                /** @description `next_page` of the previous page */
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
                    "application/json": components["schemas"]["Page_Alias"];
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
    AdminGetAlias: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                alias: string;
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
                    "application/json": components["schemas"]["Alias"];
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
    AdminSetAlias: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
            path: {
                alias: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["AliasSetting"];
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
                    "application/json": components["schemas"]["Alias"];
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
    AdminRemoveAlias: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
            path: {
                alias: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, nothing follows */
            204: {
                headers: {
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
    AdminGetAuditFindings: {
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
    AdminListAuditLog: {
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
                /** @description part of a name or an id; case does not count */
                search?: string | null;
                sort?: "at" | "-at";
                limit?: number;
                /** @description `next_page` of the previous page */
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
                    "application/json": components["schemas"]["Page_AuditLineView"];
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
    AdminGetAuditLine: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                line_id: string;
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
                    "application/json": components["schemas"]["AuditLineView"];
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
    AdminListBatches: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                status?: "validating" | "in_progress" | "finalizing" | "completed" | "failed" | "expired" | "cancelling" | "cancelled" | null;
                /** @description part of a name or an id; case does not count */
                search?: string | null;
                sort?: "created_at" | "-created_at" | "deadline_at" | "-deadline_at" | "status" | "-status" | "lines" | "-lines";
                limit?: number;
                /** @description `next_page` of the previous page */
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
                    "application/json": components["schemas"]["Page_BatchView"];
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
    AdminGetBatch: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                batch_id: string;
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
                    "application/json": components["schemas"]["BatchView"];
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
    AdminCancelBatch: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
            path: {
                batch_id: string;
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
                    "application/json": components["schemas"]["BatchView"];
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
    AdminListBillingProfiles: {
        parameters: {
            query?: {
                /** @description part of a name or an id; case does not count */
                search?: string | null;
                sort?: "slug" | "-slug" | "name" | "-name";
                limit?: number;
                /** @description `next_page` of the previous page */
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
                    "application/json": components["schemas"]["Page_TenantProfileView"];
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
    AdminListBudgets: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                /** @description part of a name or an id; case does not count */
                search?: string | null;
                sort?: "created_at" | "-created_at" | "limit_amount" | "-limit_amount" | "scope" | "-scope" | "unit" | "-unit" | "period" | "-period" | "kind" | "-kind";
                limit?: number;
                /** @description `next_page` of the previous page */
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
                    "application/json": components["schemas"]["Page_ListedBudgetView"];
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
    AdminSetBudget: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminGetBudget: {
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
    AdminRemoveBudget: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminListEndUserBudgets: {
        parameters: {
            query?: {
                /** @description as requests name the end user */
                end_user?: string | null;
                sort?: "used" | "-used" | "held" | "-held" | "created_at" | "-created_at";
                limit?: number;
                /** @description `next_page` of the previous page */
                page?: string | null;
            };
            header?: never;
            path: {
                budget_id: string;
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
                    "application/json": components["schemas"]["Page_EndUserView"];
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
    AdminListConnectors: {
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
                    "application/json": components["schemas"]["Page_ConnectorView"];
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
    AdminGetConnector: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
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
                    "application/json": components["schemas"]["ConnectorView"];
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
    AdminReleaseConnector: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
            path: {
                name: string;
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
                    "application/json": components["schemas"]["ConnectorRelease"];
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
    AdminListCorrections: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                request_id?: string | null;
                limit?: number;
                /** @description `next_page` of the previous page */
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
                    "application/json": components["schemas"]["Page_CorrectionView"];
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
    AdminMakeCorrection: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminGetCorrection: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                correction_id: string;
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
                    "application/json": components["schemas"]["WholeCorrectionView"];
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
    AdminMakeCredit: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewCredit"];
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
                    "application/json": components["schemas"]["WholeCorrectionView"];
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
    AdminGetEngineStatus: {
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
    AdminStreamEngine: {
        parameters: {
            query?: {
                engine?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Server-sent events named `engine` and `away`, and comments. The stream does not end by itself. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/event-stream": components["schemas"]["EngineEvent"] | components["schemas"]["AwayEvent"];
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
    AdminListEngines: {
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
                    "application/json": components["schemas"]["FleetView"];
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
    AdminGetEngine: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
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
                    "application/json": components["schemas"]["FleetEngineView"];
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
    AdminDrainEngine: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["EngineDrain"];
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
                    "application/json": components["schemas"]["FleetEngineView"];
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
    AdminListErrorRates: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                key_id?: string | null;
                width?: "1h" | "1d";
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
                    "application/json": components["schemas"]["ErrorRates"];
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
    AdminListExports: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                /** @description part of a name or an id; case does not count */
                search?: string | null;
                sort?: "created_at" | "-created_at" | "month" | "-month" | "kind" | "-kind" | "state" | "-state";
                limit?: number;
                /** @description `next_page` of the previous page */
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
                    "application/json": components["schemas"]["Page_ExportView"];
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
    AdminCreateExport: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminGetExport: {
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
    AdminEndExport: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminDownloadExport: {
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
                    "cache-control"?: string;
                    /** @description File size in bytes */
                    "content-length"?: string;
                    /** @description Entity tag */
                    etag?: string;
                    /** @description Last modified data-time in RFC 2822 format */
                    "last-modified"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/octet-stream": string;
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
    AdminDownloadExportManifest: {
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
                    "cache-control"?: string;
                    /** @description File size in bytes */
                    "content-length"?: string;
                    /** @description Entity tag */
                    etag?: string;
                    /** @description Last modified data-time in RFC 2822 format */
                    "last-modified"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/octet-stream": string;
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
    AdminListFiles: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                purpose?: "batch" | "batch_output" | null;
                /** @description part of a name or an id; case does not count */
                search?: string | null;
                sort?: "created_at" | "-created_at" | "filename" | "-filename" | "bytes" | "-bytes";
                limit?: number;
                /** @description `next_page` of the previous page */
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
                    "application/json": components["schemas"]["Page_FileView"];
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
    AdminGetFile: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                file_id: string;
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
                    "application/json": components["schemas"]["FileView"];
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
    AdminDeleteFile: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
            path: {
                file_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, nothing follows */
            204: {
                headers: {
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
    AdminGetFileContent: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                file_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The content of the file */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/octet-stream": string;
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
    AdminGetHealth: {
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
                    "application/json": components["schemas"]["HealthReport"];
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
    AdminListInvoices: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                /** @description for example 2026-01 */
                month?: string | null;
                /** @description part of a name or an id; case does not count */
                search?: string | null;
                sort?: "period" | "-period" | "issued_at" | "-issued_at" | "total_picos" | "-total_picos" | "tenant_id" | "-tenant_id";
                limit?: number;
                /** @description `next_page` of the previous page */
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
                    "application/json": components["schemas"]["Page_InvoiceView"];
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
    AdminGetInvoice: {
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
    AdminRecordPayment: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
            path: {
                invoice_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewPayment"];
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
                    "application/json": components["schemas"]["PaymentView"];
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
    AdminGetIssuer: {
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
                    "application/json": components["schemas"]["IssuerView"];
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
    AdminListKeys: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                project?: string | null;
                kind?: "live" | "test" | "admin" | null;
                role?: "owner" | "operator" | "finance" | "tenant_admin" | "read_only" | null;
                status?: "active" | "expiring" | "expired" | "revoked" | null;
                /** @description part of a name or an id; case does not count */
                search?: string | null;
                sort?: "created_at" | "-created_at" | "name" | "-name" | "kind" | "-kind" | "role" | "-role" | "tier" | "-tier" | "last_used_at" | "-last_used_at" | "expires_at" | "-expires_at" | "revoked_at" | "-revoked_at";
                limit?: number;
                /** @description `next_page` of the previous page */
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
                    "application/json": components["schemas"]["Page_Key"];
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
    AdminCreateKey: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminGetKey: {
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
    AdminChangeKey: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminRevokeKey: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminRotateKey: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminListLimits: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                limit?: number;
                /** @description `next_page` of the previous page */
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
                    "application/json": components["schemas"]["Page_OwnLimits"];
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
    AdminSetLimits: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminGetDefaultLimits: {
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
                    "application/json": components["schemas"]["DefaultLimits"];
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
    AdminGetLimits: {
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
    AdminRemoveLimits: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminGetMargins: {
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
    AdminListBaseModels: {
        parameters: {
            query?: {
                engine?: string | null;
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
                    "application/json": components["schemas"]["ModelsView"];
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
    AdminAddModel: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["AddedModel"];
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
                    "application/json": components["schemas"]["ModelView"];
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
    AdminGetBaseModel: {
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
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ModelView"];
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
    AdminRemoveModel: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
            path: {
                model: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description It is draining or removed */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ModelView"];
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
    AdminChangeModel: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
            path: {
                model: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ChangedModel"];
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
                    "application/json": components["schemas"]["ModelView"];
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
    AdminRestoreModel: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ModelView"];
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
    AdminGetOverview: {
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
                    "application/json": components["schemas"]["OverviewView"];
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
    AdminListPeople: {
        parameters: {
            query?: {
                /** @description part of a name or an id; case does not count */
                search?: string | null;
                sort?: "signed_in_at" | "-signed_in_at" | "created_at" | "-created_at" | "name" | "-name" | "email" | "-email" | "role" | "-role";
                limit?: number;
                /** @description `next_page` of the previous page */
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
                    "application/json": components["schemas"]["Page_PersonView"];
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
    AdminGetPerson: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                person_id: string;
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
                    "application/json": components["schemas"]["PersonView"];
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
    AdminListPeriods: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                /** @description for example 2026-01 */
                month?: string | null;
                state?: "open" | "closed" | null;
                limit?: number;
                /** @description `next_page` of the previous page */
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
                    "application/json": components["schemas"]["Page_PeriodView"];
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
    AdminListClosablePeriods: {
        parameters: {
            query: {
                month: string;
                limit?: number;
                /** @description `next_page` of the previous page */
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
                    "application/json": components["schemas"]["Page_ClosableView"];
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
    AdminClosePeriod: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminCloseMonth: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["MonthClosing"];
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
                    "application/json": components["schemas"]["ClosedMonth"];
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
    AdminGetPeriod: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                period_id: string;
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
                    "application/json": components["schemas"]["PeriodView"];
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
    AdminListPrices: {
        parameters: {
            query?: {
                subject?: string | null;
                limit?: number;
                /** @description `next_page` of the previous page */
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
                    "application/json": components["schemas"]["Page_PriceView"];
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
    AdminPublishPrice: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminPreviewPrice: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminGetPrice: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                price_id: string;
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
    AdminListProjects: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                /** @description part of a name or an id; case does not count */
                search?: string | null;
                /** @description archived objects instead of all others */
                archived?: boolean;
                sort?: "name" | "-name" | "created_at" | "-created_at" | "tenant_id" | "-tenant_id";
                limit?: number;
                /** @description `next_page` of the previous page */
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
                    "application/json": components["schemas"]["Page_ProjectView"];
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
    AdminCreateProject: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminGetProject: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                project_id: string;
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
    AdminArchiveProject: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
            path: {
                project_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, nothing follows */
            204: {
                headers: {
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
    AdminChangeProject: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminRestoreProject: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
            path: {
                project_id: string;
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
    AdminListReconciliations: {
        parameters: {
            query?: {
                limit?: number;
                /** @description `next_page` of the previous page */
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
                    "application/json": components["schemas"]["Page_ReconciliationView"];
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
    AdminReconcileBooks: {
        parameters: {
            query?: {
                /** @description for example 2026-01 */
                month?: string | null;
            };
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminGetOpenImbalances: {
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
    AdminGetReconciliation: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                number: string;
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
    AdminListRequests: {
        parameters: {
            query?: {
                status?: "held" | "settled" | "voided" | "expired" | null;
                ending?: string | null;
                /** @description an id or a slug */
                tenant?: string | null;
                project_id?: string | null;
                key_id?: string | null;
                model?: string | null;
                adapter?: string | null;
                tier?: string | null;
                batch?: string | null;
                /** @description Unix seconds */
                start_time?: number | null;
                /** @description Unix seconds */
                end_time?: number | null;
                search?: string | null;
                outcome?: "served" | "refused" | "failed" | null;
                code?: string | null;
                min_ttft_s?: number | null;
                limit?: number;
                /** @description `next_page` of the previous page */
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
                    "application/json": components["schemas"]["Page_RequestView"];
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
    AdminGetRequest: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                request_id: string;
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
                    "application/json": components["schemas"]["WholeRequestView"];
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
    AdminSearch: {
        parameters: {
            query: {
                /** @description part of a name, or an id */
                q: string;
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
                    "application/json": components["schemas"]["SearchView"];
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
    AdminGetSession: {
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
    AdminSignIn: {
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
    AdminSignOut: {
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
    AdminEndProviderSessions: {
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
    AdminGetSignInOptions: {
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
                    "application/json": components["schemas"]["SignInOptions"];
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
    AdminEnrolTotp: {
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
                    "application/json": components["schemas"]["TotpSecret"];
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
    AdminConfirmTotp: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["TotpCode"];
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
                    "application/json": components["schemas"]["RecoveryCodes"];
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
    AdminRemoveTotp: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["TotpCode"];
            };
        };
        responses: {
            /** @description Request fulfilled, nothing follows */
            204: {
                headers: {
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
    AdminGetSlaReport: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                tier?: string | null;
                model?: string | null;
                /** @description The first day, as 2026-01-31; by default the last day */
                start_date?: string | null;
                /** @description The last day; by default today. At most 400 days */
                end_date?: string | null;
                /** @description The days without a start_date and an end_date */
                period?: "yesterday" | "7d" | "30d" | "90d" | "this_month" | "last_month";
                /** @description Of the days, an IANA name; by default the tenant's, else UTC */
                time_zone?: string | null;
                /** @description model: by tier and model */
                by?: "tier" | "model";
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
                    "application/json": components["schemas"]["SlaView"];
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
    AdminExportSlaReport: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                tier?: string | null;
                model?: string | null;
                /** @description The first day, as 2026-01-31; by default the last day */
                start_date?: string | null;
                /** @description The last day; by default today. At most 400 days */
                end_date?: string | null;
                /** @description The days without a start_date and an end_date */
                period?: "yesterday" | "7d" | "30d" | "90d" | "this_month" | "last_month";
                /** @description Of the days, an IANA name; by default the tenant's, else UTC */
                time_zone?: string | null;
                /** @description model: by tier and model */
                by?: "tier" | "model";
                format?: "csv" | "json";
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
                    "text/csv": string;
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
    AdminListTenants: {
        parameters: {
            query?: {
                /** @description part of a name or an id; case does not count */
                search?: string | null;
                /** @description archived objects instead of all others */
                archived?: boolean;
                status?: "active" | "suspended" | null;
                sort?: "slug" | "-slug" | "name" | "-name" | "tier" | "-tier" | "status" | "-status" | "created_at" | "-created_at";
                limit?: number;
                /** @description `next_page` of the previous page */
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
                    "application/json": components["schemas"]["Page_TenantView"];
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
    AdminCreateTenant: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminGetTenant: {
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
    AdminArchiveTenant: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
            path: {
                tenant_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, nothing follows */
            204: {
                headers: {
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
    AdminChangeTenant: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminGetBillingProfile: {
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
                    "application/json": components["schemas"]["BillingProfileView"];
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
    AdminSetBillingProfile: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
            path: {
                tenant_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewProfile"];
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
                    "application/json": components["schemas"]["BillingProfileView"];
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
    AdminRestoreTenant: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminListTiers: {
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
                    "application/json": components["schemas"]["TiersView"];
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
    AdminGetTier: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
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
                    "application/json": components["schemas"]["TierView"];
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
    AdminGetUsage: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                project_id?: string | null;
                key_id?: string | null;
                model?: string | null;
                adapter?: string | null;
                tier?: string | null;
                /** @description NAME=VALUE: one value of each name matches; NAME=: usage without it */
                tags?: string[] | null;
                batch?: "any" | "none" | null;
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
    AdminListUsage: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                project_id?: string | null;
                key_id?: string | null;
                model?: string | null;
                adapter?: string | null;
                tier?: string | null;
                /** @description NAME=VALUE: one value of each name matches; NAME=: usage without it */
                tags?: string[] | null;
                batch?: "any" | "none" | null;
                /** @description Unix seconds */
                start_time?: number | null;
                /** @description Unix seconds */
                end_time?: number | null;
                limit?: number;
                /** @description `next_page` of the previous page */
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
                    "application/json": components["schemas"]["Page_UsageView"];
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
    AdminListWebhooks: {
        parameters: {
            query?: {
                /** @description an id or a slug */
                tenant?: string | null;
                limit?: number;
                /** @description `next_page` of the previous page */
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
                    "application/json": components["schemas"]["Page_WebhookView"];
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
    AdminCreateWebhook: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminGetWebhook: {
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
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "cache-control"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["WebhookView"];
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
    AdminRemoveWebhook: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
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
    AdminChangeWebhook: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
            path: {
                webhook_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["WebhookChange"];
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
                    "application/json": components["schemas"]["WebhookView"];
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
    AdminRotateWebhookSecret: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
            path: {
                webhook_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
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
    AdminTestWebhook: {
        parameters: {
            query?: never;
            header?: {
                /** @description A write repeated with it within 24 hours gets the first answer again, with the header `idempotent-replayed: true`. */
                "Idempotency-Key"?: string;
            };
            path: {
                webhook_id: string;
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
                    "application/json": components["schemas"]["WebhookTestResult"];
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
    ListBatches: {
        parameters: {
            query?: {
                after?: string | null;
                limit?: number;
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
                    "application/json": components["schemas"]["BatchList"];
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
    CreateBatch: {
        parameters: {
            query?: never;
            header?: {
                /** @description A request that repeats an Idempotency-Key within a day gets the batch of the first request, in its present state. */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["BatchRequest"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["BatchObject"];
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
    GetBatch: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                batch: string;
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
                    "application/json": components["schemas"]["BatchObject"];
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
    CancelBatch: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                batch: string;
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
                    "application/json": components["schemas"]["BatchObject"];
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
    ListBudgets: {
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
    CreateChatCompletion: {
        parameters: {
            query?: never;
            header?: {
                /** @description A request that does not stream and repeats an Idempotency-Key within ten minutes gets the first answer again. */
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
            /** @description Server-sent events: `data: ` with a ChatCompletionChunk each, then `data: [DONE]`; an error event ends the stream. */
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
    CreateCompletion: {
        parameters: {
            query?: never;
            header?: {
                /** @description A request that does not stream and repeats an Idempotency-Key within ten minutes gets the first answer again. */
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
            /** @description Server-sent events: `data: ` with a Completion each, then `data: [DONE]`; an error event ends the stream. */
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
    CreateConversation: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewConversation"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ConversationObject"];
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
    GetConversation: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                conversation: string;
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
                    "application/json": components["schemas"]["ConversationObject"];
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
    UpdateConversation: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                conversation: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ConversationChange"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ConversationObject"];
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
    DeleteConversation: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                conversation: string;
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
                    "application/json": components["schemas"]["DeletedConversation"];
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
    ListConversationItems: {
        parameters: {
            query?: {
                after?: string | null;
                limit?: number;
                order?: "asc" | "desc";
            };
            header?: never;
            path: {
                conversation: string;
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
                    "application/json": components["schemas"]["ConversationItemList"];
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
    AddConversationItems: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                conversation: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewItems"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ConversationItemList"];
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
    GetConversationItem: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                conversation: string;
                item: string;
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
                    "application/json": {
                        [key: string]: unknown;
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
    DeleteConversationItem: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                conversation: string;
                item: string;
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
                    "application/json": components["schemas"]["ConversationObject"];
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
    Detokenize: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["DetokenizeRequest"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["DetokenizeAnswer"];
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
    CreateEmbeddings: {
        parameters: {
            query?: never;
            header?: {
                /** @description A request that does not stream and repeats an Idempotency-Key within ten minutes gets the first answer again. */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["EmbeddingsRequest"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["EmbeddingList"];
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
    ListFiles: {
        parameters: {
            query?: {
                after?: string | null;
                limit?: number;
                order?: "asc" | "desc";
                purpose?: "batch" | "batch_output" | null;
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
                    "application/json": components["schemas"]["FileList"];
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
    UploadFile: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "multipart/form-data": {
                    /** @enum {string} */
                    "expires_after[anchor]"?: "created_at";
                    "expires_after[seconds]"?: number;
                    /** Format: binary */
                    file: string;
                    /** @enum {string} */
                    purpose: "batch";
                };
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["FileObject"];
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
    GetFile: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                file: string;
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
                    "application/json": components["schemas"]["FileObject"];
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
    DeleteFile: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                file: string;
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
                    "application/json": components["schemas"]["DeletedFile"];
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
    GetFileContent: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                file: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The content of the file */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/octet-stream": string;
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
    CreateMessage: {
        parameters: {
            query?: never;
            header?: {
                /** @description A request that does not stream and repeats an Idempotency-Key within ten minutes gets the first answer again. */
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
            /** @description Server-sent events, named by their type, from message_start to message_stop; an error event ends the stream. */
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
    ListMessageBatches: {
        parameters: {
            query?: {
                after_id?: string | null;
                before_id?: string | null;
                limit?: number;
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
                    "application/json": components["schemas"]["MessageBatchPage"];
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
    CreateMessageBatch: {
        parameters: {
            query?: never;
            header?: {
                /** @description A request that repeats an Idempotency-Key within a day gets the batch of the first request, in its present state. */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["MessageBatchRequest"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["MessageBatchObject"];
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
    GetMessageBatch: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                batch: string;
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
                    "application/json": components["schemas"]["MessageBatchObject"];
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
    DeleteMessageBatch: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                batch: string;
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
                    "application/json": components["schemas"]["DeletedMessageBatch"];
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
    CancelMessageBatch: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                batch: string;
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
                    "application/json": components["schemas"]["MessageBatchObject"];
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
    GetMessageBatchResults: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                batch: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The content of the file */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/octet-stream": string;
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
    CountTokens: {
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
    ListModels: {
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
    GetModel: {
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
    GetOrganizationCosts: {
        parameters: {
            query: {
                /** @description Unix seconds */
                start_time: number;
                /** @description Unix seconds; by default now */
                end_time?: number | null;
                bucket_width?: "1d" | "all";
                tenants?: string[] | null;
                project_ids?: string[] | null;
                api_key_ids?: string[] | null;
                models?: string[] | null;
                adapters?: string[] | null;
                tiers?: string[] | null;
                tags?: string[] | null;
                /** @description true: lines of batches; false: all other requests */
                batch?: boolean | null;
                group_by?: ("tenant_id" | "project_id" | "api_key_id" | "model" | "adapter" | "service_tier" | "batch" | "line_item")[] | null;
                /** @description Names of tags whose values are groups */
                group_by_tags?: string[] | null;
                limit?: number | null;
                /** @description `next_page` of the previous page */
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
    GetOrganizationUsage: {
        parameters: {
            query: {
                /** @description Unix seconds */
                start_time: number;
                /** @description Unix seconds; by default now */
                end_time?: number | null;
                bucket_width?: "1m" | "1h" | "1d" | "all";
                tenants?: string[] | null;
                project_ids?: string[] | null;
                api_key_ids?: string[] | null;
                models?: string[] | null;
                adapters?: string[] | null;
                tiers?: string[] | null;
                tags?: string[] | null;
                /** @description true: lines of batches; false: all other requests */
                batch?: boolean | null;
                group_by?: ("tenant_id" | "project_id" | "api_key_id" | "model" | "adapter" | "service_tier" | "batch")[] | null;
                /** @description Names of tags whose values are groups */
                group_by_tags?: string[] | null;
                limit?: number | null;
                /** @description `next_page` of the previous page */
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
    Rerank: {
        parameters: {
            query?: never;
            header?: {
                /** @description A request that does not stream and repeats an Idempotency-Key within ten minutes gets the first answer again. */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["RerankRequest"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RerankAnswer"];
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
    CreateResponse: {
        parameters: {
            query?: never;
            header?: {
                /** @description A request that does not stream and repeats an Idempotency-Key within ten minutes gets the first answer again. */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ResponsesRequest"];
            };
        };
        responses: {
            /** @description Server-sent events, named by their type and numbered by `sequence_number`, from response.created to response.completed, response.incomplete or response.failed. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ResponseObject"];
                    "text/event-stream": components["schemas"]["ResponseEvent"];
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
    CompactConversation: {
        parameters: {
            query?: never;
            header?: {
                /** @description A request that does not stream and repeats an Idempotency-Key within ten minutes gets the first answer again. */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CompactRequest"];
            };
        };
        responses: {
            /** @description The compacted conversation */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CompactedResponse"];
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
    CountInputTokens: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ResponsesRequest"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["InputTokens"];
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
    GetResponse: {
        parameters: {
            query?: {
                stream?: boolean;
                starting_after?: number | null;
            };
            header?: never;
            path: {
                response: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Server-sent events, named by their type and numbered by `sequence_number`, from response.created to response.completed, response.incomplete or response.failed. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ResponseObject"];
                    "text/event-stream": components["schemas"]["ResponseEvent"];
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
    DeleteResponse: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                response: string;
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
                    "application/json": components["schemas"]["DeletedResponse"];
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
    CancelResponse: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                response: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ResponseObject"];
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
    ListInputItems: {
        parameters: {
            query?: {
                after?: string | null;
                limit?: number;
                order?: "asc" | "desc";
            };
            header?: never;
            path: {
                response: string;
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
                    "application/json": components["schemas"]["InputItems"];
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
    Score: {
        parameters: {
            query?: never;
            header?: {
                /** @description A request that does not stream and repeats an Idempotency-Key within ten minutes gets the first answer again. */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ScoreRequest"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ScoreAnswer"];
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
    Tokenize: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["TokenizeRequest"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TokenizeAnswer"];
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
    GetUsage: {
        parameters: {
            query?: {
                /** @description Unix seconds */
                start_time?: number | null;
                /** @description Unix seconds */
                end_time?: number | null;
                /** @description true: lines of batches; false: all other requests */
                batch?: boolean | null;
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
    GetVersion: {
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
                    "application/json": components["schemas"]["GatewayVersion"];
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
