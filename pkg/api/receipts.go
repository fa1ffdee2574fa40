package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Receipts takes up what providers tell of notices and of users.
type Receipts interface {
	NoticeReceipts(ctx context.Context, rs []coupon.Receipt) (known []bool, err error)
	NoticeUser(ctx context.Context, window uint64, channel coupon.Channel) (string, error)
	OptOut(ctx context.Context, user string, o coupon.OptOut) error
}

const (
	maxReceipts = 1000 // of one request
	maxAhead    = 5 * time.Minute
	maxReason   = 64 // bytes
)

// What became of a receipt or an opt-out.
const (
	resultRecorded = "recorded"
	resultUnknown  = "unknown"
)

type receiptIn struct {
	NoticeID string `json:"notice_id" doc:"as it was sent: 123-sms"`
	Status   string `json:"status" enum:"delivered,failed"`
	Reason   string `json:"reason,omitempty" maxLength:"64" doc:"a code of the provider's; what is none is recorded as other, since it may hold an address"`
	At       string `json:"at,omitempty" format:"date-time" doc:"when; absent: when it was signed"`
}

type receiptsIn struct {
	Body struct {
		Receipts []receiptIn `json:"receipts" minItems:"1" maxItems:"1000" nullable:"false"`
	}
}

type optoutIn struct {
	UserID   string `json:"user_id,omitempty" doc:"the shop's id of the user"`
	NoticeID string `json:"notice_id,omitempty" doc:"of a notice that the user got, instead of user_id"`
	Channel  string `json:"channel,omitempty" enum:"inbox,popup,email,sms,push,log,*" doc:"* for all; absent: that of the notice"`
	Kind     string `json:"kind,omitempty" enum:"expiring,expired,*" doc:"absent: *, all kinds"`
	Out      bool   `json:"out" doc:"false: wanted again"`
	At       string `json:"at,omitempty" format:"date-time" doc:"when the user decided: the last decision holds; absent: when it was signed"`
}

type optoutsIn struct {
	Body struct {
		Optouts []optoutIn `json:"optouts" minItems:"1" maxItems:"100" nullable:"false"`
	}
}

// ReceiptResult is what became of one receipt or opt-out.
type ReceiptResult struct {
	NoticeID string `json:"notice_id,omitempty"`
	Result   string `json:"result" enum:"recorded,unknown" doc:"unknown: no such notice was sent"`
}

type receiptsOut struct {
	Body struct {
		Results []ReceiptResult `json:"results" nullable:"false" doc:"one for each, in order"`
	}
}

func (a *API) addReceipts() {
	register(a, route{
		id: "postReceipts", method: http.MethodPost, path: "/v1/receipts", tag: tagProviders, summary: "Tell what became of notices",
		text: "Delivered is the last word. A notice that failed is told by the next channel of its chain, if there is one and it is still of use. " +
			"The same receipt again changes nothing.",
		signed: true, large: true,
	}, a.postReceipts)
	register(a, route{
		id: "postOptouts", method: http.MethodPost, path: "/v1/optouts", tag: tagProviders, summary: "Tell what users do not want any more",
		text:   "The last decision of a user on a channel and a kind holds. It is kept until the user is erased.",
		signed: true, large: true,
	}, a.postOptouts)
}

func (a *API) postReceipts(ctx context.Context, in *receiptsIn) (*receiptsOut, error) {
	signed := callerFrom(ctx).signed
	all := make([]coupon.Receipt, len(in.Body.Receipts))
	var faults faults
	for i, r := range in.Body.Receipts {
		at := fmt.Sprintf("body.receipts[%d].", i)
		out := &all[i]
		out.WindowID, out.Channel = faults.notice(at+"notice_id", r.NoticeID)
		out.Delivered, out.At = r.Status == "delivered", faults.instant(at+"at", r.At, signed)
		if len(r.Reason) > maxReason || !printable(r.Reason) {
			faults.add(at+"reason", r.Reason, fmt.Sprintf("must have at most %d bytes of UTF-8 without control characters", maxReason))
		}
		out.Reason = reasonCode(r.Reason)
	}
	if err := faults.problem(); err != nil {
		return nil, err
	}
	known, err := a.deps.Receipts.NoticeReceipts(ctx, all)
	if err != nil {
		return nil, err //nolint:wrapcheck // problemOf tells what it means; what was recorded stays so, and repeats do nothing
	}
	out := &receiptsOut{}
	out.Body.Results = make([]ReceiptResult, len(all))
	for i, r := range in.Body.Receipts {
		out.Body.Results[i] = ReceiptResult{NoticeID: r.NoticeID, Result: toldResult(known[i])}
		a.metrics.receipts.WithLabelValues(string(all[i].Channel), r.Status, toldResult(known[i])).Inc()
	}
	return out, nil
}

func toldResult(known bool) string {
	if known {
		return resultRecorded
	}
	return resultUnknown
}

var (
	codePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:-]{0,39}$`)
	longNumber  = regexp.MustCompile(`[0-9]{6}`)
)

// reasonCode is a provider's reason if it looks like a code: a sentence, or a long number, may hold a user's address.
func reasonCode(reason string) string {
	switch {
	case reason == "":
		return "refused"
	case !codePattern.MatchString(reason), longNumber.MatchString(reason):
		return "other"
	default:
		return strings.ToLower(reason)
	}
}

type optout struct {
	user    string // empty: that of the notice
	window  uint64
	channel coupon.Channel
	decided coupon.OptOut
}

func (a *API) postOptouts(ctx context.Context, in *optoutsIn) (*receiptsOut, error) {
	signed := callerFrom(ctx).signed
	all := make([]optout, len(in.Body.Optouts))
	var faults faults
	for i, o := range in.Body.Optouts {
		at := fmt.Sprintf("body.optouts[%d].", i)
		out := &all[i]
		out.decided = coupon.OptOut{
			Channel: coupon.Channel(o.Channel), Kind: coupon.NoticeKind(o.Kind), Out: o.Out, At: faults.instant(at+"at", o.At, signed), Source: "receipt",
		}
		if o.Kind == "" {
			out.decided.Kind = coupon.AllKinds
		}
		if (o.UserID == "") == (o.NoticeID == "") {
			faults.add(strings.TrimSuffix(at, "."), "", "must have either user_id or notice_id")
			continue
		}
		if o.NoticeID != "" {
			if out.window, out.channel = faults.notice(at+"notice_id", o.NoticeID); o.Channel == "" {
				out.decided.Channel = out.channel
			}
			continue
		}
		out.user = o.UserID
		faults.fault(text(at+"user_id", o.UserID, true))
		if o.Channel == "" {
			faults.add(at+"channel", "", "must be given with user_id")
		}
	}
	if err := faults.problem(); err != nil {
		return nil, err
	}
	out := &receiptsOut{}
	out.Body.Results = make([]ReceiptResult, len(all))
	for i := range all {
		known, err := a.optOut(ctx, &all[i])
		if err != nil {
			return nil, err
		}
		out.Body.Results[i] = ReceiptResult{NoticeID: in.Body.Optouts[i].NoticeID, Result: toldResult(known)}
		a.metrics.optouts.WithLabelValues(toldResult(known)).Inc()
	}
	return out, nil
}

func (a *API) optOut(ctx context.Context, o *optout) (known bool, err error) {
	user := o.user
	if user == "" {
		user, err = a.deps.Receipts.NoticeUser(ctx, o.window, o.channel)
		if errors.Is(err, coupon.ErrNotFound) {
			return false, nil
		}
		if err != nil {
			return false, err //nolint:wrapcheck // problemOf tells what it means
		}
	}
	return true, a.deps.Receipts.OptOut(ctx, user, o.decided) //nolint:wrapcheck // problemOf tells what it means
}

// faults collects what is wrong with the members of a batch, up to a bound.
type faults []Fault

const maxFaults = 20

func (f *faults) add(location, value, message string) {
	if len(*f) < maxFaults {
		*f = append(*f, Fault{Location: location, Message: message, Value: clip(value)})
	}
}

func (f *faults) fault(one *Fault) {
	if one != nil {
		f.add(one.Location, one.Value, one.Message)
	}
}

func (f *faults) problem() error {
	if len(*f) == 0 {
		return nil
	}
	return badRequests(*f)
}

func (f *faults) notice(location, id string) (uint64, coupon.Channel) {
	window, channel, err := coupon.ParseNoticeID(id)
	if err != nil || coupon.NoticeID(window, channel) != id {
		f.add(location, id, "must be the id of a notice as it was sent, such as 123-sms")
	}
	return window, channel
}

// instant reads when something happened; that of the signature if it is not said.
func (f *faults) instant(location, text string, signed time.Time) time.Time {
	if text == "" {
		return signed
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	switch {
	case err != nil || at.Year() < 1970:
		f.add(location, text, "must be an instant in RFC 3339 with a zone, from 1970 on")
	case at.After(signed.Add(maxAhead)):
		f.add(location, text, fmt.Sprintf("must not be later than the signature by more than %s", maxAhead))
	}
	return at.UTC()
}
