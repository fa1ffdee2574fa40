// Package report is what a comparison of delay mechanisms found: its figures, what they come to over several rounds, and how a person
// sees them, as a table on a terminal or as one page with plots.
//
// It is pure: what is printed depends on the result alone. The page holds everything that it shows, asks no server for anything and
// runs no script.
package report
