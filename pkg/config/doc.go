// Package config reads a worker's configuration: defaults, then a YAML file, then the environment.
//
//	defaults (structs)  <  -config file  <  LAPSE__SECTION__KEY
//
// Invariants:
//   - strict: a key that no field takes is a fault, in the file and in the environment alike; other LAPSE_… names only warn,
//     because a cluster sets such names for its own ends (LAPSE_PUBLISHER_SERVICE_HOST)
//   - all faults are reported at once, each with the full path of its key and where its value came from
//   - a secret is never part of a fault, and printed as [redacted]; each secret key has a twin KEY_file that names a file
//   - Load is a pure function of its Sources, those secret files excepted
//
// A field is a key if it has a koanf tag. Text forms: durations are "1h30m" and may begin with days ("30d", "1d12h"); a
// horizon may be "unlimited"; lists from the environment are separated by commas; lists of structs and maps are YAML there, of which
// JSON is a part. A list replaces its default whole, a map adds to it: members that it does not name keep theirs.
package config
