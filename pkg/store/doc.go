// Package store is the MySQL side: migrations, models, and the verbs that change coupons, each one a transaction.
// It is the only importer of gorm.
//
// # What it relies on and what it promises
//
//   - Every connection is checked when it opens: time zone UTC, strict SQL mode, READ COMMITTED, short lock wait
//     and wait_timeout, so that a pod gone silent does not keep its row locks (see connector).
//   - Every instant that decides is the database's own UTC_TIMESTAMP(3); no other clock function is used.
//   - Every transition is a compare-and-set: its UPDATE repeats the state it leaves, and the number of rows
//     changed must equal the number decided, else the transaction is rolled back and decided again.
//   - History and outbox rows are written in the transition's own transaction.
//   - A transaction lives under Config.TxLimit and never waits for the broker.
//   - Every statement has a name and is registered with define, so that tests can check the whole list: clock
//     functions, grammar, indexes.
//
// Errors are classified once, here, as coupon.ErrUnavailable, ErrContention, ErrIntegrity, ErrNotFound or
// ErrConflict, so that callers need not know the engine.
package store
