// Package receive holds the far side of the channels, for tests and lapsectl verify: a real SMTP server with TLS, and the
// HTTP receiver of a provider for SMS and push, which sends receipts too. Both write down what arrives and play a provider's
// bad days: silent, slow, refusing, talking nonsense, gone in the middle.
//
// Invariants:
//   - it shares no code with the channels: a signature is checked and made here from what docs/channels.md says of it;
//   - what a client sent is written down before it is answered, or left without an answer;
//   - faults are switched at run time; what hangs lets go when the fault is changed or the receiver closed;
//   - Close waits for all that belongs to a receiver.
package receive
