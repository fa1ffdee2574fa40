// Package console holds the tests of the console in a real browser: a headless Chromium against the real workers on the real
// servers. It is a module of its own, so that what drives the browser stays out of ours.
//
// The pictures in docs/img are made by it: go test . -update.
package console
