package api

import (
	"bytes"
	"context"
	"encoding/csv"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Bounds of exports.
const (
	exportPage    = coupon.MaxPage
	exportWithin  = 30 * time.Minute // of a whole one
	exportWriting = 30 * time.Second // of a page: who reads slower is cut off
	exportsAtOnce = 2
	exportType    = "text/csv; charset=utf-8; header=present"
	headerNext    = "X-Next-Page-Token"
)

// exportColumns are the columns of the CSV export, in their order. New ones are added at the end.
func exportColumns() []string {
	return []string{
		"coupon_id", "template_id", "revision", "batch_id", "user_id", "state", "stored_state", "version", "valid_from", "expires_at", "granted_at",
		"locked_at", "lock_until", "order_id", "used_at", "expired_at", "expire_cause", "value", "currency",
		"offer", "basis_points", "cap", "min_spend", "scopes", "observed",
	}
}

// exportRow shows a coupon in the columns.
func exportRow(c *coupon.Coupon, now time.Time) []string {
	whole := func(n int64) string { return strconv.FormatInt(n, 10) }
	o := c.Terms.Offer
	return []string{
		formatID(c.ID), formatID(c.Terms.TemplateID), whole(int64(c.Terms.Revision)), cell(c.BatchID), cell(c.UserID), c.Seen(now).String(), c.Status.String(),
		whole(int64(c.Version)), cellTime(c.ValidFrom), cellTime(c.ExpiresAt), cellTime(c.GrantedAt), cellTime(c.LockedAt), cellTime(c.LockUntil),
		cell(c.OrderID), cellTime(c.UsedAt), cellTime(c.ExpiredAt), string(c.Cause), whole(c.Terms.Value), c.Terms.Currency,
		string(o.Kind), whole(o.BasisPoints), whole(o.Cap), whole(o.MinSpend), cell(strings.Join(o.Scopes, "|")), strconv.FormatBool(c.Observed),
	}
}

func cellTime(t time.Time) string {
	if at := instant(t); at != nil {
		return at.Format(time.RFC3339Nano)
	}
	return ""
}

// cell keeps a text from being taken for a formula by a spreadsheet, which may run commands: one that begins like a
// formula gets an apostrophe before it, and one that begins with an apostrophe too, so that taking a leading one away
// always gives the text.
func cell(s string) string {
	if s == "" {
		return s
	}
	// The wide forms are taken for the narrow ones by some.
	if strings.ContainsRune("=+-@\t\r\n'", rune(s[0])) || strings.HasPrefix(s, "＝") || strings.HasPrefix(s, "＋") ||
		strings.HasPrefix(s, "－") || strings.HasPrefix(s, "＠") {
		return "'" + s
	}
	return s
}

type exportIn struct {
	CouponFilter
	Limit int `query:"limit" minimum:"1" maximum:"10000" doc:"asks for a piece: so many coupons are looked at, and the header X-Next-Page-Token says where the next piece begins. Absent: everything"`
}

// exporter keeps the exports apart from other requests: each page waits for its turn as a request does, and nothing is
// held while the client reads.
type exporter struct {
	*API
	turn chan struct{}
}

func (a *API) addExport() {
	e := &exporter{API: a, turn: make(chan struct{}, exportsAtOnce)}
	register(a, route{
		id: "exportCoupons", method: http.MethodGet, path: "/v1/coupons.csv", tag: tagCoupons, summary: "List coupons as CSV",
		text: "The same list and filters as listCoupons, as text/csv with a header line: " + strings.Join(exportColumns(), ", ") + ".\n\n" +
			"Instants are UTC; empty is none or never; scopes are joined by |. A text that a spreadsheet would take for a formula, or that begins with an apostrophe, has an " +
			"apostrophe before it: take one leading apostrophe away to get the text.\n\n" +
			"Without limit everything is sent as it is read; if that cannot be brought to its end the connection is cut, so that a part never passes for the whole. " +
			"With limit a piece is sent, and the header X-Next-Page-Token says where the next begins (page_token); without the header it was the last. " +
			"Each page of 1000 is read at an instant of its own. Only two exports run at a time. Looking at coupons in this way settles none of them.",
		scopes: []Scope{ScopeOps}, stream: true, ungated: true,
	}, e.export)
}

func (e *exporter) export(ctx context.Context, in *exportIn) (*huma.StreamResponse, error) {
	q, err := in.query()
	if err != nil {
		return nil, err
	}
	select {
	case e.turn <- struct{}{}:
	default:
		return nil, problem(http.StatusServiceUnavailable, CodeBusy, "as many exports are running as may").after(30)
	}
	done := func() { <-e.turn }
	w := &exporting{exporter: e, q: q}
	if in.Limit > 0 {
		defer done()
		return w.piece(ctx, in.Limit)
	}
	// The first page before the answer begins: what is wrong with the query is a problem then.
	if err := w.begin(ctx); err != nil {
		done()
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		defer done()
		w.rest(ctx, hc)
	}}, nil
}

// exporting is one export.
type exporting struct {
	*exporter
	q   coupon.ListQuery
	out bytes.Buffer
	csv *csv.Writer
}

func (w *exporting) begin(ctx context.Context) error {
	w.csv = csv.NewWriter(&w.out)
	_ = w.csv.Write(exportColumns()) // to memory
	w.q.Limit = exportPage
	return w.page(ctx)
}

// page reads the next page; w.q.After is empty after the last.
func (w *exporting) page(ctx context.Context) error {
	leave, p := w.limits.gates[ScopeOps].enter(ctx)
	if p != nil {
		return p
	}
	page, err := w.list(ctx, w.q)
	leave()
	if err != nil {
		return err
	}
	for i := range page.Coupons {
		_ = w.csv.Write(exportRow(&page.Coupons[i], page.Now)) // to memory
	}
	w.csv.Flush()
	w.q.After = page.Next
	return nil
}

// piece is an answer of bounded size, whole.
func (w *exporting) piece(ctx context.Context, rows int) (*huma.StreamResponse, error) {
	w.csv = csv.NewWriter(&w.out)
	_ = w.csv.Write(exportColumns()) // to memory
	for first := true; rows > 0 && (first || w.q.After != ""); first = false {
		w.q.Limit = min(rows, exportPage)
		if err := w.page(ctx); err != nil {
			return nil, err
		}
		rows -= w.q.Limit
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		if w.q.After != "" {
			hc.SetHeader(headerNext, w.q.After)
		}
		w.head(hc)
		_, _ = hc.BodyWriter().Write(w.out.Bytes()) // the client went away: nobody to tell
	}}, nil
}

func (*exporting) head(hc huma.Context) {
	hc.SetHeader("Content-Type", exportType)
	hc.SetHeader("Content-Disposition", `attachment; filename="coupons.csv"`)
	hc.SetStatus(http.StatusOK)
}

// rest sends the pages as they come. It has time of its own: a request's is too short.
func (w *exporting) rest(ctx context.Context, hc huma.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), exportWithin)
	defer cancel()
	w.head(hc)
	ans := answerOf(hc)
	for {
		err := w.send(ans)
		if err == nil && w.q.After == "" {
			return
		}
		if err == nil {
			err = w.page(ctx)
		}
		if err != nil {
			ans.fail(w.failed(ctx, err))
			return
		}
	}
}

func (w *exporting) send(ans *answer) error {
	to := http.NewResponseController(ans)
	_ = to.SetWriteDeadline(time.Now().Add(exportWriting)) // not every writer has deadlines; the server's own then holds
	_, err := ans.Write(w.out.Bytes())
	w.out.Reset()
	if err == nil {
		err = to.Flush()
	}
	return err //nolint:wrapcheck // the caller's request fails with it, once
}
