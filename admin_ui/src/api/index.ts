// The functions with which pages call the API.
export { api, type AnswerOf, type BodyOf, type QueryOf } from "./client";
export { ApiError, apiError } from "./errors";
export { fileAddress, useGet, useList, useWrite, type List, type RowOf } from "./query";
export { useMay, useSession, type Session } from "./session";
export { streamed, upload, useEvents } from "./streams";
