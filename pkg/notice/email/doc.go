// Package email is the channel to mail, over SMTP with TLS.
//
// Invariants:
//   - a notice's Message-ID is <notice id@domain> on every try, so that a letter which was sent twice, because its connection
//     broke between the final dot and the reply, can be told from two letters. Mail is not sent at most once;
//   - without TLS nothing is sent, but to loopback if configured so;
//   - nothing of a message gets into a command or header unchecked: addresses are parsed, the rest is encoded;
//   - every wait on the network ends with the context, whose deadline is the channel's limit; connections that idle are bounded in
//     number and time;
//   - results hold codes only: never an address, a text, or what the server said.
package email
