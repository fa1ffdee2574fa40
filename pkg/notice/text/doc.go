// Package text renders notices: title and text in the reader's language, HTML for e-mail, and parameters for the template of a
// provider (requirement R33).
//
// A locale is a directory of templates named by its BCP 47 tag: words.tmpl says how dates, times and sums are written, and a file for
// each kind has the notice as a whole. Numbers, currency symbols and plurals are CLDR's; how many digits a currency has is ISO 4217's.
//
// Invariants: an end at which a local day begins is written as the end of the day before; "today" and "tomorrow" are as of the moment
// that is given; a title or text is one line without control characters, whatever the data; HTML is escaped by html/template; every
// template is tried when it is loaded.
package text
