package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
)

// The columns of a grant file.
const (
	colTemplate = iota
	colUser
	colKey
	colBatch
	colFrom
	colEnd
	columnCount
)

//nolint:gochecknoglobals // a constant table
var columnNames = [columnCount]string{"template_id", "user_id", "grant_key", "batch_id", "valid_from", "expires_at"}

// The formats of a grant file.
const (
	formatCSV   = "csv"
	formatJSONL = "jsonl"
)

const maxLine = 64 << 10 // bytes

// fault is what is wrong with a field of a row, as the rejects file has it.
type fault struct {
	Line   int64  `json:"line"`
	Field  string `json:"field"` // "row": the row as a whole
	Value  string `json:"value"`
	Reason string `json:"reason"`
}

func (f fault) Error() string {
	return fmt.Sprintf("line %d: %s: %s, got %q", f.Line, f.Field, f.Reason, f.Value)
}

// cell is a field as it was written.
type cell struct {
	text   string // empty: not given
	never  bool   // JSON null of expires_at, "never" in CSV
	number bool   // a JSON number
}

type record [columnCount]cell

// grantRow is one row: a grant, or what is wrong with it.
type grantRow struct {
	line   int64
	grant  coupon.Grant
	faults []fault
}

// rowDefaults are what the command line says for rows that do not.
type rowDefaults struct {
	Template uint64
	Batch    string
	From     time.Time
	End      time.Time
}

// rowReader reads a grant file, line by line: a row that cannot be read costs itself alone. It keeps one line, and
// for rows without a key a counter for each user.
type rowReader struct {
	in       *bufio.Reader
	line     int64
	bytes    int64
	format   string
	columns  []int // of CSV: the column that each position holds
	defaults rowDefaults
	counts   map[uint64]uint32 // by hash of the user; two users of one hash count together, which keeps keys unique
}

func newRowReader(in io.Reader, format string, defaults rowDefaults) (*rowReader, error) {
	r := &rowReader{in: bufio.NewReaderSize(in, maxLine), format: format, defaults: defaults, counts: make(map[uint64]uint32)}
	if format == formatCSV {
		if err := r.header(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// errTooLong: a line is skipped.
var errTooLong = errors.New("line too long")

// next gives the next line without its end; blank lines are passed over. The bytes are valid until the next call.
func (r *rowReader) next() ([]byte, error) {
	for {
		raw, err := r.in.ReadSlice('\n')
		r.bytes += int64(len(raw))
		tooLong := errors.Is(err, bufio.ErrBufferFull)
		for errors.Is(err, bufio.ErrBufferFull) {
			var rest []byte
			rest, err = r.in.ReadSlice('\n')
			r.bytes += int64(len(rest))
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("reading line %d: %w", r.line+1, err)
		}
		if len(raw) == 0 && err != nil {
			return nil, io.EOF
		}
		r.line++
		if tooLong {
			return nil, errTooLong
		}
		if r.line == 1 {
			raw = bytes.TrimPrefix(raw, []byte("\uFEFF"))
		}
		raw = bytes.TrimSuffix(bytes.TrimSuffix(raw, []byte("\n")), []byte("\r"))
		if len(bytes.TrimSpace(raw)) > 0 {
			return raw, nil
		}
	}
}

// header reads the first line of CSV.
func (r *rowReader) header() error {
	line, err := r.next()
	if errors.Is(err, io.EOF) {
		return errors.New("the file is empty: CSV begins with a header")
	}
	if err != nil {
		return fmt.Errorf("header: %w", err)
	}
	names, reason := splitCSV(string(line))
	if reason != "" {
		return fmt.Errorf("header: %s", reason)
	}
	var errs []error
	for _, name := range names {
		column := slices.Index(columnNames[:], name)
		switch {
		case column < 0:
			errs = append(errs, fmt.Errorf("header: unknown column %q; the columns are %s", name, strings.Join(columnNames[:], ", ")))
		case slices.Contains(r.columns, column):
			errs = append(errs, fmt.Errorf("header: column %q is there twice", name))
		}
		r.columns = append(r.columns, column)
	}
	lacks := func(column int, unless bool, text string) {
		if !unless && !slices.Contains(r.columns, column) {
			errs = append(errs, errors.New("header: column "+columnNames[column]+" is missing"+text))
		}
	}
	lacks(colTemplate, r.defaults.Template != 0, ", and no --template is given")
	lacks(colUser, false, "")
	lacks(colKey, r.defaults.Batch != "" || slices.Contains(r.columns, colBatch), sameAgain)
	return errors.Join(errs...)
}

// Read gives the next row; io.EOF after the last one.
func (r *rowReader) Read() (grantRow, error) {
	line, err := r.next()
	row := grantRow{line: r.line}
	whole := func(value []byte, reason string) {
		row.faults = append(row.faults, fault{Line: r.line, Field: "row", Value: clipped(string(value)), Reason: reason})
	}
	switch {
	case errors.Is(err, errTooLong):
		whole(nil, fmt.Sprintf("must have at most %d bytes", maxLine-1))
		return row, nil
	case err != nil:
		return row, err
	case !utf8.Valid(line):
		whole(line, "must be UTF-8")
		return row, nil
	}
	var rec record
	var reason string
	if r.format == formatCSV {
		rec, reason = r.csv(string(line))
	} else {
		rec, row.faults, reason = jsonRecord(line, r.line)
	}
	if reason != "" {
		whole(line, reason)
		return row, nil
	}
	r.grant(&row, &rec)
	return row, nil
}

func (r *rowReader) csv(line string) (rec record, reason string) {
	cells, reason := splitCSV(line)
	if reason == "" && len(cells) != len(r.columns) {
		reason = fmt.Sprintf("must have as many fields as the header, %d; has %d", len(r.columns), len(cells))
	}
	if reason != "" {
		return rec, reason
	}
	for i, column := range r.columns {
		rec[column] = cell{text: cells[i]}
	}
	if rec[colEnd].text == neverWord {
		rec[colEnd] = cell{never: true}
	}
	return rec, ""
}

const neverWord = "never"

// grant makes a row's grant, or adds what is wrong. What it lets pass, event.DecodeIssuance takes.
func (r *rowReader) grant(row *grantRow, rec *record) {
	blamed := func(column int) bool {
		return slices.ContainsFunc(row.faults, func(f fault) bool { return f.Field == columnNames[column] })
	}
	bad := func(column int, reason string) {
		if !blamed(column) {
			row.faults = append(row.faults, fault{Line: row.line, Field: columnNames[column], Value: clipped(rec[column].text), Reason: reason})
		}
	}
	g := &row.grant
	g.TemplateID = r.defaults.Template
	if c := rec[colTemplate]; c.text != "" {
		id, err := parseID("", c.text)
		if g.TemplateID = id; err != nil {
			bad(colTemplate, "must be a whole number from 1 on")
		} else if c.number && id > 1<<53-1 {
			bad(colTemplate, "is not exact as a number above 2^53-1, write it in quotes")
		}
	} else if g.TemplateID == 0 {
		bad(colTemplate, "is required, since no --template is given")
	}
	for i, field := range []*string{&g.UserID, &g.Key, &g.BatchID} {
		column := colUser + i
		if *field = rec[column].text; *field != "" {
			if reason := wrongText(*field); reason != "" {
				bad(column, reason)
			}
		}
	}
	if g.BatchID == "" {
		g.BatchID = r.defaults.Batch
	}
	if g.UserID == "" {
		bad(colUser, "is required")
	} else if g.Key == "" && !blamed(colUser) && !blamed(colKey) {
		// Counted whatever else is wrong: a row that is mended later must not move the keys of the others.
		hash := fnv.New64a()
		_, _ = hash.Write([]byte(g.UserID))
		r.counts[hash.Sum64()]++
		var reason string
		if g.Key, reason = madeKey(g.BatchID, g.UserID, r.counts[hash.Sum64()]); reason != "" && !blamed(colBatch) {
			bad(colKey, reason)
		}
	}
	g.ValidFrom = r.defaults.From
	if text := rec[colFrom].text; text != "" {
		at, reason := parseInstant(text)
		if g.ValidFrom = ceilMillisecond(at); reason != "" {
			bad(colFrom, reason)
		}
	}
	g.ExpiresAt = r.defaults.End
	if c := rec[colEnd]; c.never {
		g.ExpiresAt = coupon.Never
	} else if c.text != "" {
		at, reason := parseInstant(c.text)
		if g.ExpiresAt = coupon.CeilSecond(at); reason == "" && coupon.IsNever(g.ExpiresAt) {
			reason = tooFar
		}
		if reason != "" {
			bad(colEnd, reason)
		}
	}
}

const (
	noKey     = "is required, since neither --batch nor a batch_id is given"
	sameAgain = ", and no --batch is given: without keys the same file again would grant everything again"
)

// madeKey is the key of a row without one.
func madeKey(batch, user string, n uint32) (key, reason string) {
	switch {
	case batch == "":
		return "", noKey
	case strings.Contains(batch, ":"):
		return "", "is made of batch, user and number, so the batch must not contain a colon"
	}
	key = batch + ":" + user + ":" + strconv.FormatUint(uint64(n), 10)
	if len(key) > event.MaxID {
		return "", fmt.Sprintf("is made of batch, user and number and must have at most %d bytes, has %d: give keys, or a shorter batch", event.MaxID, len(key))
	}
	return key, ""
}

// wrongText says what is wrong with a key or an id that is there.
func wrongText(s string) string {
	if len(s) > event.MaxID {
		return fmt.Sprintf("must have at most %d bytes, has %d", event.MaxID, len(s))
	}
	for _, r := range s {
		if r < 0x20 || r >= 0x7F && r <= 0x9F || r == utf8.RuneError || r >= 0xFDD0 && r <= 0xFDEF || r&0xFFFE == 0xFFFE {
			return "must not contain control characters or noncharacters"
		}
	}
	return ""
}

const tooFar = "must be from 1970 on and before 9999-12-31"

func parseInstant(text string) (at time.Time, reason string) {
	if err := at.UnmarshalText([]byte(text)); err != nil {
		return at, "must be an instant in RFC 3339 with a zone"
	}
	if at = at.UTC(); at.Year() < 1970 || coupon.IsNever(ceilMillisecond(at)) {
		return at, tooFar
	}
	return at, ""
}

func ceilMillisecond(at time.Time) time.Time {
	if f := at.Truncate(time.Millisecond); !f.Equal(at) {
		return f.Add(time.Millisecond)
	}
	return at
}

// clipped is a value as it is shown: at most 200 bytes of it.
func clipped(s string) string {
	const most = 200
	if len(s) <= most {
		return strings.ToValidUTF8(s, "\uFFFD")
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
