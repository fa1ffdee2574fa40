package adopt

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Source gives rows one after the other.
type Source interface {
	// Next gives the next row, io.EOF behind the last one.
	Next(ctx context.Context) (*Record, error)
	// Total is how many rows there are about; 0: it is not known.
	Total(ctx context.Context) (int64, error)
	Close() error
}

const longestLine = 1 << 20 // of a file

// OpenFile opens a CSV file, whose first line names its columns, or a JSONL file with an object a line, by the ending of its name (csv,
// jsonl, ndjson). from is the place of a row behind which it goes on; empty: the beginning.
func OpenFile(name, from string) (Source, error) {
	var offset, line int64
	if from != "" {
		if n, err := fmt.Sscanf(from, "%d %d", &offset, &line); n != 2 || err != nil || offset < 0 || line < 0 {
			return nil, fmt.Errorf("%s: %q is no place of a file", name, from)
		}
	}
	file, err := os.Open(name) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, err //nolint:wrapcheck // names the file
	}
	f := &textFile{name: name, file: file}
	var src Source
	switch ending := strings.ToLower(filepath.Ext(name)); ending {
	case ".csv":
		src, err = f.csv(offset, line)
	case ".jsonl", ".ndjson":
		src, err = f.jsonl(offset, line)
	default:
		err = fmt.Errorf("%s: must end in .csv, .jsonl or .ndjson", name)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return src, nil
}

// textFile is a file with a row a line.
type textFile struct {
	name string
	file *os.File
	head int64 // lines that are no rows
}

// Close closes the file.
func (f *textFile) Close() error { return f.file.Close() } //nolint:wrapcheck // names the file

// Total counts the lines.
func (f *textFile) Total(ctx context.Context) (int64, error) {
	file, err := os.Open(f.name)
	if err != nil {
		return 0, err //nolint:wrapcheck // names the file
	}
	defer func() { _ = file.Close() }() // only read
	n, last := -f.head, byte('\n')
	for buf := make([]byte, 1<<20); ctx.Err() == nil; {
		k, err := file.Read(buf)
		part := buf[:k]
		n += int64(bytes.Count(part, []byte{'\n'}))
		if len(part) > 0 {
			last = part[len(part)-1]
		}
		if errors.Is(err, io.EOF) {
			if last != '\n' {
				n++
			}
			return max(0, n), nil
		}
		if err != nil {
			return 0, err //nolint:wrapcheck // names the file
		}
	}
	return 0, ctx.Err() //nolint:wrapcheck // ctx's
}

type csvFile struct {
	*textFile
	rows    *csv.Reader
	columns []string
	offset  int64 // of the reader's beginning
	line    int64 // likewise
}

func (f *textFile) csv(offset, line int64) (Source, error) {
	f.head = 1
	in := bufio.NewReaderSize(f.file, 1<<16)
	var bom int64
	if mark, err := in.Peek(3); err == nil && bytes.Equal(mark, []byte("\xef\xbb\xbf")) {
		_, _ = in.Discard(3) // was peeked
		bom = 3
	}
	c := &csvFile{textFile: f, rows: csv.NewReader(in), offset: bom}
	c.rows.ReuseRecord = true
	head, err := c.rows.Read()
	if err != nil {
		return nil, fmt.Errorf("%s: its first line must name the columns: %w", f.name, err)
	}
	seen := map[string]bool{}
	for _, name := range head {
		name = strings.TrimSpace(name)
		if name == "" || seen[name] || !utf8.ValidString(name) {
			return nil, fmt.Errorf("%s: its first line must name each column, in UTF-8 and once, got %q", f.name, clip(name))
		}
		seen[name] = true
		c.columns = append(c.columns, name)
	}
	if offset > 0 {
		if _, err := f.file.Seek(offset, io.SeekStart); err != nil {
			return nil, err //nolint:wrapcheck // names the file
		}
		c.rows, c.offset, c.line = csv.NewReader(bufio.NewReaderSize(f.file, 1<<16)), offset, line
		c.rows.ReuseRecord = true
	}
	c.rows.FieldsPerRecord = -1
	return c, nil
}

// Next reads a row. One with more or fewer values than columns is a fault of that row alone; a quotation that is left open is the file's.
func (c *csvFile) Next(context.Context) (*Record, error) {
	values, err := c.rows.Read()
	if errors.Is(err, io.EOF) {
		return nil, io.EOF
	}
	if err != nil {
		var at *csv.ParseError
		if errors.As(err, &at) {
			return nil, fmt.Errorf("%s: line %d: %w", c.name, c.line+int64(at.StartLine), at.Err)
		}
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	first, _ := c.rows.FieldPos(0)
	last, _ := c.rows.FieldPos(len(values) - 1)
	last += strings.Count(values[len(values)-1], "\n")
	rec := &Record{
		Where: "line " + strconv.FormatInt(c.line+int64(first), 10),
		Place: strconv.FormatInt(c.offset+c.rows.InputOffset(), 10) + " " + strconv.FormatInt(c.line+int64(last), 10),
	}
	if len(values) != len(c.columns) {
		rec.Fault = fmt.Sprintf("has %d values for %d columns", len(values), len(c.columns))
		return rec, nil
	}
	rec.Values = make(map[string]string, len(values))
	for i, v := range values {
		if !utf8.ValidString(v) {
			rec.Values, rec.Fault = nil, c.columns[i]+": must be UTF-8"
			return rec, nil
		}
		rec.Values[c.columns[i]] = v
	}
	return rec, nil
}

type jsonFile struct {
	*textFile
	rows   *bufio.Reader
	offset int64
	line   int64
}

func (f *textFile) jsonl(offset, line int64) (Source, error) {
	if _, err := f.file.Seek(offset, io.SeekStart); err != nil {
		return nil, err //nolint:wrapcheck // names the file
	}
	return &jsonFile{textFile: f, rows: bufio.NewReaderSize(f.file, longestLine), offset: offset, line: line}, nil
}

// Next reads a line. What is no object of plain values is a fault of that line alone.
func (j *jsonFile) Next(context.Context) (*Record, error) {
	for {
		line, err := j.rows.ReadSlice('\n')
		j.offset += int64(len(line))
		j.line++
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("%s: line %d: is longer than %d bytes", j.name, j.line, longestLine)
		case err != nil && !errors.Is(err, io.EOF):
			return nil, fmt.Errorf("%s: %w", j.name, err)
		}
		text := bytes.TrimSpace(line)
		if len(text) == 0 {
			if err != nil {
				return nil, io.EOF
			}
			continue
		}
		rec := &Record{
			Where: "line " + strconv.FormatInt(j.line, 10),
			Place: strconv.FormatInt(j.offset, 10) + " " + strconv.FormatInt(j.line, 10),
		}
		if rec.Values, err = plain(text); err != nil {
			rec.Values, rec.Fault = nil, err.Error()
		}
		return rec, nil
	}
}

// plain reads an object of plain values.
func plain(text []byte) (map[string]string, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(text, &object); err != nil || object == nil {
		return nil, errors.New("must be a JSON object")
	}
	values := make(map[string]string, len(object))
	for name, raw := range object {
		switch raw[0] {
		case '"':
			var s string
			if err := json.Unmarshal(raw, &s); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			values[name] = s
		case '{', '[':
			return nil, fmt.Errorf("%s: must be a text, a number, true, false or null", name)
		case 'n':
		default:
			values[name] = string(raw)
		}
	}
	return values, nil
}
