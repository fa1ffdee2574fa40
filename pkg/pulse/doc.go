// Package pulse is what every process tells of itself each five seconds, in rows of the database: who it is, how long its
// stages take, what it has done lately. lapsectl status reads those rows, so that it needs neither the processes' ports
// nor a metrics server.
//
// A stage belongs to somebody: the broker, the database or the provider of a channel (Party). Its slowness is its mean
// time over the last fifteen seconds divided by its calm time: the least mean of five seconds that the process has seen,
// but never below the stage's floor nor above four times that, so that neither a very fast server makes noise look like
// trouble nor a process that was started in trouble takes it for calm. The slowest party is the bottleneck if it is three
// times slower than calm (Judge).
//
// Invariants: a row holds at most 512 bytes; nothing in it tells of a user or a coupon; a nil *Recorder records nothing.
package pulse
