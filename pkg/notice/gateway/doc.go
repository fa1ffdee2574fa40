// Package gateway is the channel to SMS and push providers: each notice is one signed HTTP POST of JSON to a gateway, which is
// the provider or an adapter before it. It also checks the signatures of what gateways send back. docs/channels.md is the
// contract.
//
// Invariants:
//   - an SMS is written to a connection at most once: nothing in here or in net/http sends the request again, and whatever
//     ends after a connection was there, without an answer that says no, is Unknown;
//   - every try carries the notice id as Idempotency-Key, and a signature of its own;
//   - no redirect is followed, no proxy of the environment is used, no more than 64 KiB of an answer is read;
//   - results hold codes only: never an address, a text, a user id, or what the gateway answered.
package gateway
