package main

import (
	"encoding/csv"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
)

func readRows(t *testing.T, content, format string, d rowDefaults) []grantRow {
	t.Helper()
	r, err := newRowReader(strings.NewReader(content), format, d)
	require.NoError(t, err)
	var out []grantRow
	for {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			return out
		}
		require.NoError(t, err)
		out = append(out, row)
	}
}

func TestRows(t *testing.T) {
	t.Parallel()
	at := time.Date(2027, 1, 31, 16, 0, 0, 0, time.UTC)
	long := strings.Repeat("x", 129)
	for name, c := range map[string]struct {
		csv, jsonl string
		defaults   rowDefaults
		want       coupon.Grant
		faults     []fault // without line
	}{
		"everything": {
			csv:   "template_id,user_id,grant_key,batch_id,valid_from,expires_at\n7,u1,k1,b1,2027-01-01T00:00:00.5Z,2027-02-01T00:00:00+08:00\n",
			jsonl: `{"template_id":"7","user_id":"u1","grant_key":"k1","batch_id":"b1","valid_from":"2027-01-01T00:00:00.5Z","expires_at":"2027-02-01T00:00:00+08:00"}`,
			want: coupon.Grant{
				TemplateID: 7, UserID: "u1", Key: "k1", BatchID: "b1", ValidFrom: time.Date(2027, 1, 1, 0, 0, 0, 5e8, time.UTC), ExpiresAt: at,
			},
		},
		"defaults": {
			csv: "user_id\nu1", jsonl: `{"user_id":"u1"}`,
			defaults: rowDefaults{Template: 9, Batch: "may", End: at},
			want:     coupon.Grant{TemplateID: 9, UserID: "u1", Key: "may:u1:1", BatchID: "may", ExpiresAt: at},
		},
		"never": {
			csv: "template_id,user_id,grant_key,expires_at\n7,u1,k1,never\n", jsonl: `{"template_id":7,"user_id":"u1","grant_key":"k1","expires_at":null}`,
			want: coupon.Grant{TemplateID: 7, UserID: "u1", Key: "k1", ExpiresAt: coupon.Never},
		},
		"the row's own batch makes its key": {
			csv: "template_id,user_id,batch_id\n7,u1,own\n", jsonl: `{"template_id":7,"user_id":"u1","batch_id":"own"}`,
			defaults: rowDefaults{Batch: "may"},
			want:     coupon.Grant{TemplateID: 7, UserID: "u1", Key: "own:u1:1", BatchID: "own"},
		},
		"quoting, spaces and a byte order mark": {
			csv: "\uFEFFtemplate_id,user_id,grant_key\r\n7,\"u,\"\"1\"\"\", k \r\n", jsonl: "\uFEFF{\"template_id\":7,\"user_id\":\"u,\\\"1\\\"\",\"grant_key\":\" k \"}\r\n",
			want: coupon.Grant{TemplateID: 7, UserID: `u,"1"`, Key: " k "},
		},
		"every bad field is named": {
			csv:   "template_id,user_id,grant_key,valid_from,expires_at\n07,,k\u0001,yesterday,2027-02-30T00:00:00Z\n",
			jsonl: `{"template_id":"07","user_id":"","grant_key":"k\u0001","valid_from":"yesterday","expires_at":"2027-02-30T00:00:00Z"}`,
			faults: []fault{
				{Field: "template_id", Value: "07", Reason: "must be a whole number from 1 on"},
				{Field: "grant_key", Value: "k\u0001", Reason: "must not contain control characters or noncharacters"},
				{Field: "user_id", Value: "", Reason: "is required"},
				{Field: "valid_from", Value: "yesterday", Reason: "must be an instant in RFC 3339 with a zone"},
				{Field: "expires_at", Value: "2027-02-30T00:00:00Z", Reason: "must be an instant in RFC 3339 with a zone"},
			},
		},
		"too long": {
			csv: "template_id,user_id,grant_key\n7," + long + ",k\n", jsonl: `{"template_id":7,"user_id":"` + long + `","grant_key":"k"}`,
			faults: []fault{{Field: "user_id", Value: long, Reason: "must have at most 128 bytes, has 129"}},
		},
		"a key made too long": {
			csv: "template_id,user_id\n7," + long[:120] + "\n", jsonl: `{"template_id":7,"user_id":"` + long[:120] + `"}`,
			defaults: rowDefaults{Batch: "batch-of-may"},
			faults:   []fault{{Field: "grant_key", Reason: "is made of batch, user and number and must have at most 128 bytes, has 135: give keys, or a shorter batch"}},
		},
		"a batch that would make keys ambiguous": {
			csv: "template_id,user_id,batch_id\n7,u,a:b\n", jsonl: `{"template_id":7,"user_id":"u","batch_id":"a:b"}`,
			faults: []fault{{Field: "grant_key", Reason: "is made of batch, user and number, so the batch must not contain a colon"}},
		},
		"an end that is the table's never": {
			csv: "template_id,user_id,grant_key,expires_at\n7,u,k,9999-12-31T00:00:00Z\n", jsonl: `{"template_id":7,"user_id":"u","grant_key":"k","expires_at":"9999-12-31T00:00:00Z"}`,
			faults: []fault{{Field: "expires_at", Value: "9999-12-31T00:00:00Z", Reason: tooFar}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for format, content := range map[string]string{formatCSV: c.csv, formatJSONL: c.jsonl} {
				rows := readRows(t, content, format, c.defaults)
				require.Len(t, rows, 1, format)
				for i := range rows[0].faults {
					require.Equal(t, rows[0].line, rows[0].faults[i].Line)
					rows[0].faults[i].Line = 0
				}
				require.Equal(t, c.faults, rows[0].faults, format)
				if c.faults == nil {
					require.Equal(t, c.want, rows[0].grant, format)
				}
			}
		})
	}
}

func TestRowsThatCannotBeReadCostThemselvesAlone(t *testing.T) {
	t.Parallel()
	huge := strings.Repeat("y", 3*maxLine)
	for format, content := range map[string]string{
		formatCSV: "template_id,user_id,grant_key\n7,u,a\n7,u\n\n7,\"u,b\n7,u\"x,b\n7,\"u\"x,b\n" + huge + "\n7,\xff,b\n7,u,c",
		formatJSONL: `{"template_id":7,"user_id":"u","grant_key":"a"}` + "\n[1]\n\n{\"user_id\":\n" + `{"template_id":7,"user_id":"u"} {}` + "\n{} x\n" + huge + "\n{\"user_id\":\"\xff\"}\n" +
			`{"template_id":7,"user_id":"u","grant_key":"c"}`,
	} {
		rows := readRows(t, content, format, rowDefaults{})
		first := int64(2)
		if format == formatJSONL {
			first = 1
		}
		require.Len(t, rows, 8, format)
		for i, row := range rows {
			line := first + int64(i)
			if i >= 2 {
				line++ // behind the blank one
			}
			require.Equal(t, line, row.line, format)
			if i == 0 || i == len(rows)-1 {
				require.Empty(t, row.faults, format)
				continue
			}
			require.Len(t, row.faults, 1, "%s line %d: %v", format, line, row.faults)
			require.Equal(t, "row", row.faults[0].Field)
			require.Less(t, len(row.faults[0].Value), 300)
		}
		require.Equal(t, "c", rows[7].grant.Key)
	}
}

func TestJSONRowsAreStrict(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]fault{
		`{"template_id":7,"user_id":"u","grant_key":"k","colour":[1]}`:       {Line: 1, Field: "colour", Value: "[1]", Reason: "is not a column; the columns are template_id, user_id, grant_key, batch_id, valid_from, expires_at"},
		`{"template_id":7,"user_id":"u","grant_key":"k","user_id":"v"}`:      {Line: 1, Field: "user_id", Value: `"v"`, Reason: "is there twice"},
		`{"template_id":7,"user_id":5,"grant_key":"k"}`:                      {Line: 1, Field: "user_id", Value: "5", Reason: "must be a string"},
		`{"template_id":7.5,"user_id":"u","grant_key":"k"}`:                  {Line: 1, Field: "template_id", Value: "7.5", Reason: "must be a whole number from 1 on"},
		`{"template_id":9007199254740993,"user_id":"u","grant_key":"k"}`:     {Line: 1, Field: "template_id", Value: "9007199254740993", Reason: "is not exact as a number above 2^53-1, write it in quotes"},
		`{"template_id":7,"user_id":"u","grant_key":"k","expires_at":false}`: {Line: 1, Field: "expires_at", Value: "false", Reason: "must be a string"},
	} {
		rows := readRows(t, content, formatJSONL, rowDefaults{})
		require.Len(t, rows, 1)
		require.Equal(t, []fault{want}, rows[0].faults)
	}
}

func TestKeysCountEachUsersRows(t *testing.T) {
	t.Parallel()
	content := "user_id,expires_at,grant_key\na,,\nb,,\na,nonsense,\na,,own\na,,\nb,,\n"
	var keys []string
	for _, row := range readRows(t, content, formatCSV, rowDefaults{Template: 1, Batch: "may"}) {
		keys = append(keys, row.grant.Key)
	}
	// The rejected row keeps its number: mended, it must not move the others'.
	require.Equal(t, []string{"may:a:1", "may:b:1", "may:a:2", "own", "may:a:3", "may:b:2"}, keys)
}

func TestHeaderFaults(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"":                             "the file is empty: CSV begins with a header",
		"user_id,color,template_id\n":  `header: unknown column "color"; the columns are template_id, user_id, grant_key, batch_id, valid_from, expires_at`,
		"user_id,user_id\n":            `header: column "user_id" is there twice`,
		"template_id\n":                "header: column user_id is missing",
		"user_id,batch_id\n":           "header: column template_id is missing, and no --template is given",
		"user_id,template_id\n1,2\n":   "header: column grant_key is missing, and no --batch is given",
		"user_id,\"template_id\n1,2\n": "header: has a quoted field without an end",
	} {
		_, err := newRowReader(strings.NewReader(content), formatCSV, rowDefaults{})
		require.ErrorContains(t, err, want)
	}
}

// A line is split as encoding/csv does, and what that refuses is refused.
func FuzzSplitCSV(f *testing.F) {
	for _, seed := range []string{"", "a,b", `"a,""b""",c`, `a"b`, `"a`, `"a"b`, ",", `"",""`, `"""`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if strings.ContainsAny(line, "\r\n") || line == "" {
			return
		}
		r := csv.NewReader(strings.NewReader(line))
		want, err := r.Read()
		got, reason := splitCSV(line)
		if err != nil {
			require.NotEmpty(t, reason, "encoding/csv: %v", err)
			return
		}
		require.Empty(t, reason)
		require.Equal(t, want, got)
	})
}

// Whatever a file holds, a row has a grant that the publisher can read, or says what is wrong; and nothing panics.
func FuzzRows(f *testing.F) {
	f.Add("template_id,user_id,grant_key,batch_id,valid_from,expires_at\n7,u,k,b,2027-01-01T00:00:00Z,never\n", true)
	f.Add("user_id\nu\n\"v\n", true)
	f.Add(`{"template_id":7,"user_id":"u","expires_at":null}`+"\n{", false)
	f.Add(`{"template_id":7,"user_id":"\ud800","valid_from":"0000-01-01T00:00:00Z"}`, false)
	codec, err := event.NewCodec("test")
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, content string, asCSV bool) {
		format := formatJSONL
		if asCSV {
			format = formatCSV
		}
		r, err := newRowReader(strings.NewReader(content), format, rowDefaults{Template: 3, Batch: "b"})
		if err != nil {
			return
		}
		lines := int64(0)
		for {
			row, err := r.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			require.Greater(t, row.line, lines)
			lines = row.line
			if len(row.faults) > 0 {
				continue
			}
			body, err := codec.Grants("e", time.Unix(0, 0), []coupon.Grant{row.grant})
			require.NoError(t, err)
			in, err := event.DecodeIssuance(body, event.ContentType, "")
			require.NoError(t, err)
			require.Empty(t, in.Rejected)
			require.Len(t, in.Grants, 1)
			got := in.Grants[0]
			require.Equal(t, "e", got.EventID)
			got.EventID = ""
			require.Equal(t, row.grant, got)
		}
		require.Equal(t, int64(len(content)), r.bytes)
	})
}
