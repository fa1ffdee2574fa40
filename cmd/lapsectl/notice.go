package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
)

type noticeCommand struct {
	List    noticeList    `cmd:"" help:"List notices, the newest first; with --parked what failed or may have."`
	Show    noticeShow    `cmd:"" help:"Show a notice's window: what it holds, what was dropped, and what became of it on each channel."`
	Resend  noticeResend  `cmd:"" help:"Have notices sent again that failed, were suppressed or are unknown."`
	Policy  noticePolicy  `cmd:"" help:"Say what a user would be told when, by which channel, and why not: a dry run."`
	Preview noticePreview `cmd:"" help:"Show a notice as a user would read it."`
}

type noticeList struct {
	User    string   `placeholder:"ID" help:"Of this user."`
	State   []string `placeholder:"STATE" help:"In these states: pending, sending, sent, delivered, failed, suppressed, unknown."`
	Parked  bool     `help:"Those that failed for good and those of which nobody knows whether they went out, counted by reason."`
	Kind    string   `enum:",expiring,expired" default:"" help:"Of this kind: expiring or expired."`
	Channel string   `placeholder:"CHANNEL" help:"Of this channel: inbox, popup, email, sms, push or log."`
	Why     string   `name:"reason-is" placeholder:"TEXT" help:"Which failed or were suppressed for this reason, such as cap."`
	Since   string   `placeholder:"WHEN" help:"Recorded since: a time ago such as 24h, or RFC 3339 with a zone."`
	Limit   int      `default:"50" help:"Show so many."`
	Scan    int      `default:"10000" help:"Look through so many at most."`
	JSON    bool     `name:"json" help:"Print JSON."`
}

// Help says what it looks at.
func (c *noticeList) Help() string {
	return "--user and --state (or --parked) are found by an index; the other conditions look through what there is, from the newest on. " +
		"Exit code 1 with --parked: there are such notices."
}

const noticePage = 500 // read at once

// parkedStates need a person: nobody sends them again.
func parkedStates() []coupon.NoticeState {
	return []coupon.NoticeState{coupon.NoticeFailed, coupon.NoticeUnknown}
}

func (c *noticeList) query(now time.Time) (coupon.NoticeQuery, error) {
	q := coupon.NoticeQuery{
		User: c.User, Kind: coupon.NoticeKind(c.Kind), Channel: coupon.Channel(c.Channel), Reason: c.Why, Limit: min(noticePage, max(c.Scan, 1)),
	}
	for _, s := range c.State {
		q.States = append(q.States, coupon.NoticeState(s))
	}
	var errs []error
	if c.Parked {
		if len(q.States) > 0 {
			errs = append(errs, errors.New("--parked: goes without --state"))
		}
		q.States = parkedStates()
	}
	if c.Since != "" {
		at, reason := parseInstant(c.Since)
		if ago, err := time.ParseDuration(c.Since); err == nil && ago > 0 {
			at, reason = now.Add(-ago), ""
		}
		if reason != "" {
			errs = append(errs, fmt.Errorf("--since: %s, or a time ago such as 24h, got %q", reason, c.Since))
		}
		q.Since = at
	}
	if c.Limit < 1 || c.Limit > maxParked {
		errs = append(errs, fmt.Errorf("--limit: must be between 1 and %d, got %d", maxParked, c.Limit))
	}
	if c.Scan < 1 {
		errs = append(errs, fmt.Errorf("--scan: must be 1 or more, got %d", c.Scan))
	}
	if err := q.Validate(); err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			errs = append(errs, errors.New("--"+strings.Replace(line, "user_id", "user", 1)))
		}
	}
	return q, errors.Join(errs...)
}

// noticeCount counts notices that are alike.
type noticeCount struct {
	Channel string `json:"channel"`
	State   string `json:"state"`
	Reason  string `json:"reason"`
	N       int    `json:"n"`
}

// Run lists.
func (c *noticeList) Run(ctx context.Context, s *system) error {
	if _, err := c.query(time.Now()); err != nil { // before a database is needed
		return err
	}
	return s.withStore(ctx, func(db *store.Store) error {
		now, err := db.Now(ctx)
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		q, err := c.query(now)
		if err != nil {
			return err
		}
		shown, counts, more := []noticeJSON{}, map[noticeCount]int{}, false
		found := 0
		for seen := 0; ; {
			page, err := db.NoticeList(ctx, q)
			if err != nil {
				return err //nolint:wrapcheck // says what it does
			}
			for i := range page.Notices {
				n := &page.Notices[i]
				found++
				counts[noticeCount{Channel: string(n.Channel), State: string(n.State), Reason: n.Reason}]++
				if len(shown) < c.Limit {
					shown = append(shown, noticeOf(n))
				} else {
					more = true
				}
			}
			seen, q.After = seen+q.Limit, page.Next
			if q.After == "" || seen >= c.Scan || !c.Parked && len(shown) == c.Limit {
				more = more || q.After != ""
				break
			}
		}
		list := noticeCounts(counts)
		switch {
		case c.JSON && c.Parked:
			err = s.printJSON(map[string]any{"found": found, "counts": list, "notices": shown, "more": more})
		case c.JSON:
			err = s.printJSON(map[string]any{"notices": shown, "more": more})
		default:
			err = s.print(noticesListText(c.Parked, list, shown, more))
		}
		if err == nil && c.Parked && found > 0 {
			return s.miss("%d notices need a look", found)
		}
		return err
	})
}

func noticeCounts(counts map[noticeCount]int) []noticeCount {
	out := make([]noticeCount, 0, len(counts))
	for k, n := range counts {
		k.N = n
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b noticeCount) int {
		if a.N != b.N {
			return b.N - a.N
		}
		return strings.Compare(a.Channel+" "+a.State+" "+a.Reason, b.Channel+" "+b.State+" "+b.Reason)
	})
	return out
}

func noticesListText(parked bool, counts []noticeCount, notices []noticeJSON, more bool) string {
	if len(notices) == 0 {
		return "there is no such notice\n"
	}
	text := ""
	if parked {
		t := table{{"N", "CHANNEL", "STATE", "REASON"}}
		for _, c := range counts {
			t = append(t, []string{strconv.Itoa(c.N), c.Channel, c.State, dash(c.Reason)})
		}
		text = t.String() + "\n"
	}
	t := table{{"NOTICE", "USER", "KIND", "SLOT", "COUPONS", "STATE", "ATTEMPTS", "SINCE"}}
	for i := range notices {
		n := &notices[i]
		t = append(t, []string{
			n.NoticeID, n.UserID, n.Kind, dash(orEmpty(n.Slot)), strconv.Itoa(n.Items), n.stateText(), strconv.Itoa(n.Attempts), n.since(),
		})
	}
	text += t.String()
	if more {
		text += "… and more\n"
	}
	return text
}

type noticeShow struct {
	ID   string `arg:"" help:"The window's id, or a notice's such as 123-sms."`
	JSON bool   `name:"json" help:"Print JSON."`
}

// Run shows a window. Exit code 1: there is none.
func (c *noticeShow) Run(ctx context.Context, s *system) error {
	number := c.ID
	if strings.Contains(c.ID, "-") {
		if _, _, err := coupon.ParseNoticeID(c.ID); err != nil {
			return fmt.Errorf("notice: %w", err)
		}
		number, _, _ = strings.Cut(c.ID, "-")
	}
	id, err := parseID("notice", number)
	if err != nil {
		return err
	}
	return s.withStore(ctx, func(db *store.Store) error {
		w, err := db.NoticeShow(ctx, id)
		switch {
		case errors.Is(err, coupon.ErrNotFound):
			return s.miss("there is no window %d", id)
		case err != nil:
			return err //nolint:wrapcheck // says what it does
		case c.JSON:
			return s.printJSON(noticeWindowOf(&w))
		default:
			return s.print(noticeWindowText(&w))
		}
	})
}

type noticeResend struct {
	IDs []string `arg:"" name:"id" help:"The notices' ids, such as 123-sms."`
	By  byFlags  `embed:""`
}

// Help says what still holds.
func (c *noticeResend) Help() string {
	return "They are sent at once, under the same ids, as far as the last step before sending lets them: what does not stand any more drops out, and quiet hours, caps and " +
		"opt-outs hold as ever. An SMS whose outcome is unknown may come a second time. Who did it and why goes to the operators' log. " +
		"Exit code 1: some are in a state, or of an age, that is not sent again."
}

// Run sends again, one after the other.
func (c *noticeResend) Run(ctx context.Context, s *system) error {
	type notice struct {
		window  uint64
		channel coupon.Channel
	}
	errs := []error{c.By.check(s)}
	notices := make([]notice, len(c.IDs))
	for i, id := range c.IDs {
		var err error
		if notices[i].window, notices[i].channel, err = coupon.ParseNoticeID(id); err != nil {
			errs = append(errs, fmt.Errorf("id: %w", err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.withStore(ctx, func(db *store.Store) error {
		refused := 0
		for i, n := range notices {
			err := db.ResendNotice(ctx, n.window, n.channel, c.By.Actor, c.By.Reason)
			switch {
			case err == nil:
				if err := s.print(c.IDs[i] + " will be sent again\n"); err != nil {
					return err
				}
			case errors.Is(err, coupon.ErrNotFound), errors.Is(err, coupon.ErrConflict):
				refused++
				s.note("%v", err)
			default:
				return err //nolint:wrapcheck // says what it does
			}
		}
		if refused > 0 {
			return s.miss("%d of %d are not sent again", refused, len(notices))
		}
		return nil
	})
}
