// Package api is Lapse over HTTP: templates, grants, checkout and wallets under /v1, JSON in and out, described by the
// OpenAPI document that it serves itself (/openapi.yaml, /openapi.json).
//
// Every request takes the same way:
//
//	listener ─▶ request id ─▶ route ─▶ token and scope ─▶ rate limit ─▶ body ─▶ Idempotency-Key ─▶ bulkhead ─▶ handler
//	                └──────────── access log, metrics, one answer: whole, or a problem ────────────────────────────┘
//
// Invariants:
//   - whatever goes wrong is answered as application/problem+json with a stable code (see Problem); a request that was
//     refused with a 4xx has changed nothing
//   - a request is never half done: what a handler changes, it changes in one transaction of the store's; an answer is
//     sent once it is complete
//   - an Idempotency-Key stands for one effect and one answer (see idempotency.go)
//   - reads never take what orders need: rates and the number of requests at work are bounded for each scope by itself
//   - ids of users, orders and coupons are in no log line at info or above, and in no metric
//   - every request has a deadline, every queue a bound
//
// Handlers get who asks by callerFrom, answer with *Problem or with the errors of package coupon, and declare what they
// need of the store in Deps.
package api
