// Package crash names the commit points of the walk, and stops the process at one of them when a test has asked for it.
//
// A commit point is where something becomes durable or leaves the process: the commit of a transaction, a statement
// outside of any, the broker's confirm, an ack, an answer, a message to a provider. The code says where they are by Before
// and After, one line each; Points lists them with what a stop there repeats, and docs/crash-points.md is written from
// that list.
//
// # Invariants
//
//   - Only programs built with the tag crashpoints stop themselves. In any other build Before and After are empty, and what
//     is guarded by Enabled is not there at all.
//   - A transaction that changed nothing is no commit point.
//   - A test proves that every transaction and every statement outside of one is on the list or excused by name.
package crash

// Kind is what makes a point durable.
type Kind string

// The kinds.
const (
	Commit  Kind = "commit"  // of a transaction; named by Store.tx
	Write   Kind = "write"   // a statement outside of a transaction; its name
	Publish Kind = "publish" // to the broker, up to the confirm
	Forward Kind = "forward" // of a delivery: published again, or set aside; its queue without the prefix
	Ack     Kind = "ack"     // of a delivery; its queue without the prefix
	Answer  Kind = "answer"  // over HTTP; its operation
	Send    Kind = "send"    // to a provider; its channel
)

// Variable names the file that arms a process: as soon as it holds the text of a point and a side ("commit issue before"), the
// process that comes by renames it to the same name with HitSuffix, and kills itself.
const (
	Variable  = "LAPSE_CRASH_FILE"
	HitSuffix = ".hit"
)
