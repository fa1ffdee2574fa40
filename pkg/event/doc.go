// Package event is the wire contract: events of ours as CloudEvents 1.0 in
// structured JSON, the triggers that ride on the delay ladder, and strict
// decoders for what comes in.
//
// Invariants:
//
//   - what is written validates against docs/schema and against the CloudEvents
//     SDK; golden samples in testdata pin the bytes;
//   - an event's id is a function of what happened, so a repeat carries the
//     same id and consumers can drop it by source and id;
//   - a trigger has less than 200 bytes, and format 1 is read for ever;
//   - decoders take exact names, refuse a name that occurs twice, ignore
//     unknown names in events (a trigger has none to ignore), and name field
//     and value in what they refuse;
//   - one bad member of a batch does not hold up the others.
//
// Ids are decimal strings, money is an integer of minor units with a currency,
// instants are RFC 3339 in UTC: ends in whole seconds, what happened in
// milliseconds. Never is null.
package event
