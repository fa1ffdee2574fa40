package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
)

type grantCommand struct {
	Template  string `placeholder:"ID" help:"The template; of a file: for rows that name none."`
	User      string `placeholder:"ID" help:"The user."`
	Key       string `help:"The grant's key: the same key again grants nothing. With --count above 1 each coupon's is KEY:N."`
	ExpiresAt string `placeholder:"TIME" help:"The end, RFC 3339 with a zone, or never; by default the template's rule says. Of a file: for rows that say nothing."`
	ValidFrom string `placeholder:"TIME" help:"The beginning, RFC 3339 with a zone. Of a file: for rows that say nothing."`
	Count     int    `default:"1" help:"How many coupons for the user."`
	Batch     string `placeholder:"ID" help:"The batch; of a file: for rows that name none. Rows without a key get BATCH:USER:N."`

	File    string `placeholder:"FILE" help:"Rows to grant, CSV or JSONL; - for standard input."`
	Format  string `enum:",csv,jsonl" default:"" help:"csv or jsonl; by default the file's extension says."`
	Rate    string `placeholder:"N/s" help:"At most so many rows a second."`
	Resume  bool   `help:"Go on where an earlier run of the same file stopped."`
	Rejects string `placeholder:"FILE" help:"Write what is wrong with rejected rows to this file, a JSON object a line."`
}

// Help tells of the columns and the exit codes.
func (c *grantCommand) Help() string {
	return `A file has the columns template_id, user_id, grant_key, batch_id, valid_from, expires_at; CSV begins with a header.
An empty expires_at means the template's rule; no end is "never" in CSV, null in JSONL.
The publisher answers every grant with coupon.issued or coupon.refused (lapsectl events tail).
Exit code 0: every row was sent and confirmed, 1: rows were rejected, 2: it could not run to its end; the state beside the file (` + stateSuffix + `) lets --resume go on.`
}

// Run sends grants.
func (c *grantCommand) Run(ctx context.Context, s *system) error {
	defaults, perSecond, err := c.check()
	if err != nil {
		return err
	}
	cfg, err := s.settings(keyInstallation, keyBroker)
	if err != nil {
		return err
	}
	codec, err := event.NewCodec(cfg.Installation)
	if err != nil {
		return err //nolint:wrapcheck // names the field
	}
	client, l, err := s.broker(cfg, intake)
	if err != nil {
		return err
	}
	g := &granter{s: s, codec: codec, exchange: l.Issuance(), size: eventRows}
	if perSecond > 0 {
		// About ten events a second, so that it flows.
		g.size = max(1, min(eventRows, int(perSecond/10)))
		g.limiter = rate.NewLimiter(rate.Limit(perSecond), g.size)
	}
	finish, err := c.source(s, g, defaults, cfg.Installation+" "+cfg.Prefix)
	if err != nil {
		return err
	}
	reach, cancel := context.WithTimeout(ctx, readyLimit)
	err = client.Ping(reach) // says why, if it cannot be reached
	cancel()
	if err == nil {
		g.publisher = client.NewPublisher()
		running, stop := context.WithCancel(context.WithoutCancel(ctx))
		ended := make(chan error, 1)
		go func() { ended <- g.publisher.Run(running) }()
		err = g.run(ctx)
		stop()
		err = errors.Join(err, <-ended)
	}
	g.progress.close()
	return finish(err)
}

const maxRate = 1_000_000 // rows a second

func (c *grantCommand) check() (d rowDefaults, perSecond float64, err error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Template != "" {
		if d.Template, err = parseID("--template", c.Template); err != nil {
			errs = append(errs, err)
		}
	}
	for _, f := range []struct{ name, value string }{{"--user", c.User}, {"--key", c.Key}, {"--batch", c.Batch}} {
		if reason := wrongText(f.value); reason != "" {
			bad("%s: %s, got %q", f.name, reason, clipped(f.value))
		}
	}
	d.Batch = c.Batch
	read := func(name, text string) time.Time {
		if text == "" {
			return time.Time{}
		}
		at, reason := parseInstant(text)
		if reason != "" {
			bad("%s: %s, got %q", name, reason, clipped(text))
		}
		return at
	}
	d.From = ceilMillisecond(read("--valid-from", c.ValidFrom))
	if c.ExpiresAt == neverWord {
		d.End = coupon.Never
	} else {
		d.End = coupon.CeilSecond(read("--expires-at", c.ExpiresAt))
	}
	if c.Rate != "" {
		perSecond, err = strconv.ParseFloat(strings.TrimSuffix(c.Rate, "/s"), 64)
		if err != nil || !(perSecond > 0 && perSecond <= maxRate) {
			bad("--rate: must be a number of rows a second above 0 and at most %d, such as 500/s, got %q", maxRate, c.Rate)
		}
	}
	if c.File == "" {
		errs = append(errs, c.checkFlags()...)
	} else {
		errs = append(errs, c.checkFile()...)
	}
	return d, perSecond, errors.Join(errs...)
}

const maxCount = 1_000_000

func (c *grantCommand) checkFlags() (errs []error) {
	if c.Template == "" || c.User == "" {
		errs = append(errs, errors.New("give --template and --user, or --file"))
	}
	if c.Count < 1 || c.Count > maxCount {
		errs = append(errs, fmt.Errorf("--count: must be between 1 and %d, got %d", maxCount, c.Count))
	}
	for name, given := range map[string]bool{"--resume": c.Resume, "--rejects": c.Rejects != "", "--format": c.Format != ""} {
		if given {
			errs = append(errs, fmt.Errorf("%s goes with --file", name))
		}
	}
	return errs
}

func (c *grantCommand) checkFile() (errs []error) {
	for name, given := range map[string]bool{"--user": c.User != "", "--key": c.Key != "", "--count": c.Count != 1} {
		if given {
			errs = append(errs, fmt.Errorf("%s does not go with --file: the rows say it", name))
		}
	}
	if strings.Contains(c.Batch, ":") {
		errs = append(errs, fmt.Errorf("--batch: must not contain a colon, since keys are made of it, got %q", c.Batch))
	}
	if c.Format == "" {
		switch ext := strings.ToLower(filepath.Ext(c.File)); ext {
		case ".csv":
			c.Format = formatCSV
		case ".jsonl", ".ndjson":
			c.Format = formatJSONL
		default:
			errs = append(errs, fmt.Errorf("--format: give csv or jsonl, since the name of %s does not say", c.File))
		}
	}
	if c.File == "-" && c.Resume {
		errs = append(errs, errors.New("--resume: standard input cannot be read again"))
	}
	return errs
}

// source prepares where rows come from. finish ends it all and says what came of it.
func (c *grantCommand) source(s *system, g *granter, d rowDefaults, place string) (finish func(error) error, err error) {
	g.rejects = &rejects{}
	g.state = grantState{Version: stateVersion, Run: "lapsectl-" + uuid.NewString()}
	if c.File == "" {
		return c.flagSource(s, g, d)
	}
	in, name, total := s.stdin, "standard input", int64(0)
	var file *os.File
	closeFile := func() error { return nil }
	if c.File != "-" {
		name = c.File
		if file, err = os.Open(c.File); err != nil {
			return nil, fmt.Errorf("--file: %w", err)
		}
		in, closeFile = file, file.Close
		if total, err = c.resume(s, g, file, d, place); err != nil {
			return nil, errors.Join(err, closeFile())
		}
	}
	reader, err := newRowReader(in, c.Format, d)
	if err == nil {
		g.in, err = peek(reader, c.Batch)
	}
	if err == nil {
		g.rejects, err = openRejects(c.Rejects, g.state.Rejects)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), closeFile())
	}
	g.progress = newGrantProgress(s, total, g.state.Rows)
	return func(err error) error {
		err = errors.Join(err, g.rejects.close(), closeFile())
		return c.finish(s, g, name, err)
	}, nil
}

// resume looks for an earlier run, and notes how far this one comes. It gives the number of lines.
func (c *grantCommand) resume(s *system, g *granter, file *os.File, d rowDefaults, place string) (int64, error) {
	info, err := file.Stat()
	if err != nil {
		return 0, fmt.Errorf("--file: %w", err)
	}
	if !info.Mode().IsRegular() {
		if c.Resume {
			return 0, fmt.Errorf("--resume: %s is no regular file and cannot be read again", c.File)
		}
		return 0, nil
	}
	facts, err := inspect(file)
	if err != nil {
		return 0, fmt.Errorf("--file: %w", err)
	}
	g.stateFile = c.File + stateSuffix
	options := fmt.Sprintf("%q", []string{place, c.Format, c.Template, c.Batch, instant(d.From), instant(d.End), c.Rejects})
	earlier, found, err := readState(g.stateFile)
	switch {
	case !c.Resume && (found || err != nil):
		s.note("an earlier run of %s stopped in the middle; this one begins anew (--resume would go on)", c.File)
	case err != nil:
		return 0, err
	case c.Resume && !found:
		s.note("nothing to resume: %s is begun with", c.File)
	case found:
		if err := earlier.fits(c.File, facts, options); err != nil {
			return 0, err
		}
		g.state = earlier
		s.note("going on behind row %s of %s", grouped(int(earlier.Rows)), c.File)
	}
	g.state.SHA256, g.state.Options = facts.sha256, options
	lines := facts.lines
	if c.Format == formatCSV {
		lines = max(0, lines-1)
	}
	return lines, nil
}

// peek looks at the first row: a file without keys is refused as a whole, not row by row.
func peek(reader *rowReader, batch string) (rows, error) {
	first, err := reader.Read()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	for _, f := range first.faults {
		if batch == "" && f.Reason == noKey {
			return nil, errors.New("grant_key: the first row has none" + sameAgain)
		}
	}
	return &peeked{row: first, err: err, rest: reader}, nil
}

type peeked struct {
	row  grantRow
	err  error
	done bool
	rest rows
}

// Read gives the first row again.
func (p *peeked) Read() (grantRow, error) {
	if !p.done {
		p.done = true
		return p.row, p.err
	}
	return p.rest.Read()
}

// flagSource makes rows of the flags.
func (c *grantCommand) flagSource(s *system, g *granter, d rowDefaults) (func(error) error, error) {
	made := &repeated{user: c.User, key: c.Key, count: c.Count, defaults: d}
	what := "key " + c.Key
	switch {
	case c.Key == "" && c.Batch == "":
		made.key = uuid.NewString()
		what = "key " + made.key + ", made for this call"
	case c.Key == "":
		what = "keys " + c.Batch + ":" + c.User + ":N"
	}
	if _, reason := made.keyOf(c.Count); reason != "" {
		return nil, fmt.Errorf("key: %s", reason)
	}
	g.in = made
	g.progress = newGrantProgress(s, int64(c.Count), 0)
	return func(err error) error { return c.finish(s, g, what, err) }, nil
}

// repeated gives grants for one user.
type repeated struct {
	user, key string
	count     int
	defaults  rowDefaults
	given     int
}

func (r *repeated) keyOf(n int) (key, reason string) {
	switch {
	case r.key == "":
		return madeKey(r.defaults.Batch, r.user, uint32(n))
	case r.count > 1:
		key = r.key + ":" + strconv.Itoa(n)
	default:
		key = r.key
	}
	return key, wrongText(key)
}

// Read gives the next grant.
func (r *repeated) Read() (grantRow, error) {
	if r.given == r.count {
		return grantRow{}, io.EOF
	}
	r.given++
	key, _ := r.keyOf(r.given)
	return grantRow{line: int64(r.given), grant: coupon.Grant{
		Key: key, TemplateID: r.defaults.Template, UserID: r.user, BatchID: r.defaults.Batch, ValidFrom: r.defaults.From, ExpiresAt: r.defaults.End,
	}}, nil
}

// finish says what was sent, and forgets the state of a run that came to its end.
func (c *grantCommand) finish(s *system, g *granter, what string, err error) error {
	st := g.state
	if err != nil {
		if st.Rows > 0 {
			s.note("%s rows of %s were dealt with: %s sent, %s rejected", grouped(int(st.Rows)), what, grouped(int(st.Sent)), grouped(int(st.Rejected)))
			if g.stateFile != "" {
				s.note("the same command with --resume goes on from there")
			}
		}
		return err
	}
	if g.stateFile != "" {
		if err := os.Remove(g.stateFile); err != nil {
			return fmt.Errorf("forgetting the state: %w", err)
		}
	}
	if err := s.print(fmt.Sprintf("sent %s grants in %s events (%s), %s rejected, %s\n", grouped(int(st.Sent)), grouped(int(st.Events)), what,
		grouped(int(st.Rejected)), g.progress.took())); err != nil {
		return err
	}
	switch {
	case st.Rejected == 0:
		return nil
	case c.Rejects != "":
		return s.miss("%s rows were rejected: %s says why", grouped(int(st.Rejected)), c.Rejects)
	default:
		return s.miss("%s rows were rejected (--rejects FILE keeps the reasons of all)", grouped(int(st.Rejected)))
	}
}
