package api

// key is a request's Idempotency-Key.
type key struct{ text string }

const maxKey = 128
