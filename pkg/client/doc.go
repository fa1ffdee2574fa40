// Package client is the Go client of Lapse's HTTP API. It stands alone: the standard library, nothing else.
//
//	lapse, err := client.New(client.Config{URL: "http://lapse:8080", Token: token})
//	locked, err := lapse.Lock(ctx, orderID, client.Order{UserID: user, CouponIDs: ids, LockFor: 30 * time.Minute})
//	switch {
//	case client.IsCode(err, client.CodeLockedByOther): // somebody else's order has it: show it as taken
//	case client.Uncertain(err): // it may have happened: ask again, the answer will be the same
//	}
//
// Invariants:
//   - an attempt whose answer was lost is not done twice: the API knows an order's verbs again by order and coupon and grants
//     by their keys; every other mutation has an Idempotency-Key, one for all attempts of a call;
//   - only what can be repeated without harm is: a connection that failed, 429, 502, 503, 504, and "in progress". Every other
//     answer is the caller's;
//   - attempts are bounded in number, each in time, all of them by the caller's context, and the waits between them are
//     jittered and never shorter than the server asked for;
//   - what is read of an answer is bounded;
//   - the token goes to the configured address alone: redirects are not followed.
//
// A Client is safe for concurrent use; use one for the whole process, it keeps its connections.
package client
