package adopt

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// LastSecond says which ends of the source name the last second of validity, and not the first instant after it: those end a second later
// here.
type LastSecond string

// The kinds.
const (
	LastSecondMidnight LastSecond = "midnight" // those at 23:59:59 of the mapping's zone; the default
	LastSecondAlways   LastSecond = "always"
	LastSecondNever    LastSecond = "never"
)

// The fields of a coupon that columns are mapped to.
const (
	FieldExternalID = "external_id"
	FieldUser       = "user_id"
	FieldState      = "state"
	FieldTemplate   = "template"
	FieldExpiresAt  = "expires_at"
	FieldValidFrom  = "valid_from"
	FieldGrantedAt  = "granted_at"
	FieldOrder      = "order_id"
	FieldLockedAt   = "locked_at"
	FieldLockUntil  = "lock_until"
	FieldUsedAt     = "used_at"
	FieldExpiredAt  = "expired_at"
)

func fieldNames() []string {
	return []string{
		FieldExternalID, FieldUser, FieldState, FieldTemplate, FieldExpiresAt, FieldValidFrom, FieldGrantedAt, FieldOrder, FieldLockedAt,
		FieldLockUntil, FieldUsedAt, FieldExpiredAt,
	}
}

// AnyTemplate is the name in Mapping.Templates for whatever is not named there.
const AnyTemplate = "*"

// Bounds of a query.
const (
	minTimeout = 100 * time.Millisecond
	maxTimeout = 10 * time.Minute
	maxPage    = 10_000
)

// Mapping says what rows of a source are here.
type Mapping struct {
	Name       string // of the import
	Zone       *time.Location
	LastSecond LastSecond
	EmptyEnd   bool // an empty end means that there is none; else such a row is refused
	Batch      string
	UserPrefix string
	LockFor    time.Duration            // of locks whose end the source does not know
	Fields     map[string]string        // column of each field
	States     map[string]coupon.Status // by the source's word or number
	Templates  map[string]uint64        // by the source's id
	Query      Query

	text [sha256.Size]byte
}

// Query reads a page of a table of the source. Select has {page} at its end, where the condition, the order and the limit of a page go, and
// may have {table}, which stands for each of Tables in turn.
type Query struct {
	Tables  []string
	Select  string
	Key     string // the unique column that the pages go by, as Select knows it
	Page    int
	Timeout time.Duration // of each statement
}

// KeyColumn is the key's name in the result.
func (q *Query) KeyColumn() string { return q.Key[strings.LastIndexByte(q.Key, '.')+1:] }

// ParseMapping reads a mapping, strictly: it reports every fault at once, each with its path and line.
func ParseMapping(text []byte) (*Mapping, error) {
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil {
		return nil, fmt.Errorf("mapping: %w", err)
	}
	m := &Mapping{
		LastSecond: LastSecondMidnight, LockFor: coupon.DefaultLock, Fields: map[string]string{}, States: map[string]coupon.Status{},
		Templates: map[string]uint64{}, Query: Query{Page: 2000, Timeout: 10 * time.Second}, text: sha256.Sum256(text),
	}
	if len(root.Content) != 1 {
		return nil, errors.New("mapping: is empty")
	}
	r := &nodes{}
	m.read(r, root.Content[0])
	m.check(r)
	if len(r.errs) > 0 {
		return nil, fmt.Errorf("mapping: %w", errors.Join(r.errs...))
	}
	if m.Batch == "" {
		m.Batch = "import." + m.Name
	}
	return m, nil
}

func (m *Mapping) read(r *nodes, root *yaml.Node) {
	r.each("", root, map[string]func(string, *yaml.Node){
		"name":        func(p string, n *yaml.Node) { r.text(p, n, &m.Name) },
		"batch":       func(p string, n *yaml.Node) { r.text(p, n, &m.Batch) },
		"user_prefix": func(p string, n *yaml.Node) { r.text(p, n, &m.UserPrefix) },
		"lock_for":    func(p string, n *yaml.Node) { r.duration(p, n, &m.LockFor) },
		"zone": func(p string, n *yaml.Node) {
			var name string
			r.text(p, n, &name)
			zone, err := time.LoadLocation(name)
			if err != nil || name == "" || name == "Local" {
				r.fault(p, n, "must be a time zone such as Asia/Shanghai, got %q", name)
				return
			}
			m.Zone = zone
		},
		"last_second": func(p string, n *yaml.Node) {
			r.text(p, n, (*string)(&m.LastSecond))
			if !slices.Contains([]LastSecond{LastSecondMidnight, LastSecondAlways, LastSecondNever}, m.LastSecond) {
				r.fault(p, n, "must be midnight, always or never, got %q", string(m.LastSecond))
			}
		},
		"empty_end": func(p string, n *yaml.Node) {
			var what string
			r.text(p, n, &what)
			if m.EmptyEnd = what == "never"; what != "never" && what != "refuse" {
				r.fault(p, n, "must be never or refuse, got %q", what)
			}
		},
		"fields": func(p string, n *yaml.Node) {
			keys := map[string]func(string, *yaml.Node){}
			for _, name := range fieldNames() {
				keys[name] = func(p string, n *yaml.Node) {
					var column string
					r.text(p, n, &column)
					if column == "" {
						r.fault(p, n, "must name a column")
					}
					m.Fields[name] = column
				}
			}
			r.each(p, n, keys)
		},
		"states": func(p string, n *yaml.Node) {
			r.any(p, n, func(p, word string, n *yaml.Node) {
				var name string
				r.text(p, n, &name)
				status, ok := statusOf(name)
				if !ok {
					r.fault(p, n, "must be unused, locked, used, expired or voided, got %q", name)
				}
				m.States[word] = status
			})
		},
		"templates": func(p string, n *yaml.Node) {
			r.any(p, n, func(p, word string, n *yaml.Node) {
				var text string
				r.text(p, n, &text)
				id, err := strconv.ParseUint(text, 10, 64)
				if err != nil || id == 0 {
					r.fault(p, n, "must be the id of a template here, got %q", text)
				}
				m.Templates[word] = id
			})
		},
		"source": func(p string, n *yaml.Node) {
			q := &m.Query
			r.each(p, n, map[string]func(string, *yaml.Node){
				"tables":  func(p string, n *yaml.Node) { r.list(p, n, &q.Tables) },
				"select":  func(p string, n *yaml.Node) { r.text(p, n, &q.Select) },
				"key":     func(p string, n *yaml.Node) { r.text(p, n, &q.Key) },
				"page":    func(p string, n *yaml.Node) { r.number(p, n, &q.Page, 1, maxPage) },
				"timeout": func(p string, n *yaml.Node) { r.duration(p, n, &q.Timeout) },
			})
		},
	})
}

// check holds what was read against itself.
func (m *Mapping) check(r *nodes) {
	fault := func(path, format string, args ...any) { r.fault(path, nil, format, args...) }
	if err := coupon.ValidImportName(m.Name); err != nil {
		r.errs = append(r.errs, err)
	}
	if m.Zone == nil && !r.told["zone"] {
		fault("zone", "must be given: the time zone of times without one")
	}
	for _, name := range []string{FieldExternalID, FieldUser, FieldState, FieldExpiresAt} {
		if m.Fields[name] == "" && !r.told["fields."+name] {
			fault("fields."+name, "must name a column")
		}
	}
	if len(m.States) == 0 {
		fault("states", "must say what each of the source's states is")
	}
	locked := slices.Contains(slices.Collect(maps.Values(m.States)), coupon.Locked)
	if locked && m.Fields[FieldOrder] == "" {
		fault("fields.order_id", "must name a column, since there are locked coupons")
	}
	if m.LockFor < time.Second || m.LockFor > coupon.MaxLock {
		fault("lock_for", "must be between 1s and %s, got %s", coupon.MaxLock, m.LockFor)
	}
	if len(m.Batch) > coupon.MaxText {
		fault("batch", "must have at most %d bytes, got %d", coupon.MaxText, len(m.Batch))
	}
	if m.Query.Select != "" || m.Query.Key != "" || len(m.Query.Tables) > 0 {
		m.Query.check(fault)
	}
}

var (
	tablePattern = regexp.MustCompile("^[\\p{L}\\p{N}_$.`-]+$")
	keyPattern   = regexp.MustCompile(`^[A-Za-z0-9_$.]+$`)
	rangePattern = regexp.MustCompile(`^(.*)\{(\d+)\.\.(\d+)\}(.*)$`)
)

func (q *Query) check(fault func(path, format string, args ...any)) {
	text := strings.TrimSpace(q.Select)
	switch words := strings.ToUpper(text); {
	case !strings.HasPrefix(words, "SELECT") && !strings.HasPrefix(words, "WITH"):
		fault("source.select", "must begin with SELECT")
	case strings.Count(text, "{page}") != 1 || !strings.HasSuffix(text, "{page}"):
		fault("source.select", "must end in {page}, where the condition, the order and the limit of a page go")
	case strings.Contains(text, ";"):
		fault("source.select", "must be one statement, without a semicolon")
	}
	q.Select = text
	if !keyPattern.MatchString(q.Key) {
		fault("source.key", "must be the unique column by which pages go, such as id or c.id, got %q", q.Key)
	}
	if strings.Contains(text, "{table}") != (len(q.Tables) > 0) {
		fault("source.tables", "must be given if, and only if, source.select has {table}")
	}
	if q.Timeout < minTimeout || q.Timeout > maxTimeout {
		fault("source.timeout", "must be between %s and %s, got %s", minTimeout, maxTimeout, q.Timeout)
	}
	var all []string
	for i, t := range q.Tables {
		parts, err := spread(t)
		if err != nil {
			fault(fmt.Sprintf("source.tables[%d]", i), "%v", err)
		}
		all = append(all, parts...)
	}
	q.Tables = all
}

// spread gives the tables that t_{0..15} stands for.
func spread(table string) ([]string, error) {
	names := []string{table}
	if m := rangePattern.FindStringSubmatch(table); m != nil {
		first, err1 := strconv.Atoi(m[2])
		last, err2 := strconv.Atoi(m[3])
		if err1 != nil || err2 != nil || first > last || last-first >= 4096 {
			return nil, fmt.Errorf("must be a range of at most 4096 tables, got %q", table)
		}
		names = nil
		for i := first; i <= last; i++ {
			names = append(names, m[1]+strconv.Itoa(i)+m[4])
		}
	}
	for _, name := range names {
		if !tablePattern.MatchString(name) {
			return nil, fmt.Errorf("must be the name of a table, got %q", name)
		}
	}
	return names, nil
}

func statusOf(name string) (coupon.Status, bool) {
	for s := coupon.Unused; s <= coupon.Voided; s++ {
		if s.String() == name {
			return s, true
		}
	}
	return 0, false
}

// Hash tells mappings apart, with what was set beside the file.
func (m *Mapping) Hash() [sha256.Size]byte {
	h := sha256.New()
	h.Write(m.text[:])
	for _, word := range slices.Sorted(maps.Keys(m.Templates)) {
		_, _ = fmt.Fprintf(h, "%q %d\n", word, m.Templates[word]) // a hash takes everything
	}
	return [sha256.Size]byte(h.Sum(nil))
}
