package api

import (
	"context"
	"net/http"
	"slices"
	"time"

	"golang.org/x/text/language"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Notices reads what users were told in the app.
type Notices interface {
	Inbox(ctx context.Context, user string, before uint64, limit int) (items []coupon.InboxItem, next uint64, err error)
	InboxUnread(ctx context.Context, user string) (int, error)
	InboxRead(ctx context.Context, user string, ids []uint64, upTo uint64) (int, error)
	TakePopups(ctx context.Context, user string, limit int) ([]coupon.InboxItem, error)
	Profiles(ctx context.Context, users []string) (map[string]coupon.Profile, error)
}

// Texts chooses among a notice's texts by the reader's languages, best first; tags that cannot be read are passed over.
type Texts interface {
	Choose(texts map[string]coupon.NoticeText, prefer ...string) coupon.NoticeText
}

const maxRead = 900 // ids of one request, and of one statement

// Notice is one that a user reads in the app.
type Notice struct {
	ID         string            `json:"id" doc:"to mark it as read by"`
	NoticeID   string            `json:"notice_id" doc:"as every channel has it"`
	Kind       coupon.NoticeKind `json:"kind" doc:"expiring: of coupons that will end; expired: of coupons that have ended; there may be more kinds one day"`
	Display    string            `json:"display" enum:"inbox,popup"`
	Title      string            `json:"title"`
	Text       string            `json:"text"`
	Items      int               `json:"items" doc:"coupons that it names"`
	CreatedAt  time.Time         `json:"created_at"`
	ValidUntil *time.Time        `json:"valid_until" doc:"of a popup: not to be shown from then on; null: no such instant"`
	ReadAt     *time.Time        `json:"read_at" doc:"null: not yet"`
}

type noticesIn struct {
	UserID    string `path:"user_id" doc:"the shop's id of the user, percent-encoded"`
	Limit     int    `query:"limit" minimum:"1" doc:"rows to look at for the page"`
	PageToken string `query:"page_token" doc:"next_page_token of the page before"`
	Locale    string `query:"locale" maxLength:"64" doc:"a BCP 47 tag; wins over Accept-Language"`
	Accept    string `header:"Accept-Language" doc:"by which the language is chosen; without it the user's own, if it is known"`
}

type noticesOut struct {
	Body struct {
		Notices []Notice `json:"notices" nullable:"false" doc:"newest first; may be fewer than asked for, even none, and more follow"`
		Next    string   `json:"next_page_token" doc:"for the next page; empty: there is none"`
	}
}

type unreadOut struct {
	Body struct {
		Unread int `json:"unread" doc:"1000: so many or more"`
	}
}

type readIn struct {
	UserID string `path:"user_id" doc:"the shop's id of the user, percent-encoded"`
	Body   struct {
		IDs  []string `json:"ids,omitempty" minItems:"1" maxItems:"900" nullable:"false" doc:"these; ids that are not the user's are passed over"`
		UpTo string   `json:"up_to,omitempty" doc:"this one and all that are older, instead of ids"`
	}
}

type readOut struct {
	Body struct {
		Read int `json:"read" doc:"how many were not read before"`
	}
}

type popupsIn struct {
	UserID string `path:"user_id" doc:"the shop's id of the user, percent-encoded"`
	Limit  int    `query:"limit" minimum:"1" doc:"popups at most; the others wait"`
	Locale string `query:"locale" maxLength:"64" doc:"a BCP 47 tag; wins over Accept-Language"`
	Accept string `header:"Accept-Language" doc:"by which the language is chosen; without it the user's own, if it is known"`
}

type popupsOut struct {
	Body struct {
		Popups []Notice `json:"popups" nullable:"false" doc:"those that end first come first"`
	}
}

func (a *API) addNotices() {
	register(a, route{
		id: "listNotices", method: http.MethodGet, path: "/v1/users/{user_id}/notices", tag: tagNotices, summary: "List what a user was told in the app",
		text:   "Newest first, in the language of locale, else of Accept-Language, else of the user's profile. Popups are not among them.",
		scopes: []Scope{ScopeRead},
	}, a.listNotices)
	register(a, route{
		id: "countUnread", method: http.MethodGet, path: "/v1/users/{user_id}/notices/unread", tag: tagNotices, summary: "Count what a user has not read",
		scopes: []Scope{ScopeRead},
	}, a.countUnread)
	register(a, route{
		id: "markRead", method: http.MethodPost, path: "/v1/users/{user_id}/notices/read", tag: tagNotices, summary: "Mark notices as read",
		text: "The second time it marks nothing.", scopes: []Scope{ScopeRead}, mutates: true,
	}, a.markRead)
	register(a, route{
		id: "takePopups", method: http.MethodPost, path: "/v1/users/{user_id}/notices/popups", tag: tagNotices, summary: "Take a user's popups",
		text: "Each is handed out once, while its coupons live: of two devices that ask, one gets it. Whoever is to get the same answer after one " +
			"that was lost sends the same Idempotency-Key.",
		scopes: []Scope{ScopeRead}, mutates: true,
	}, a.takePopups)
}

func (a *API) listNotices(ctx context.Context, in *noticesIn) (*noticesOut, error) {
	if err := texts(text("path.user_id", in.UserID, true)); err != nil {
		return nil, err
	}
	limit, err := a.limit(in.Limit)
	if err != nil {
		return nil, err
	}
	before := uint64(0)
	if in.PageToken != "" {
		if before, err = parseID("query.page_token", in.PageToken); err != nil {
			return nil, err
		}
	}
	prefer, err := a.languages(ctx, in.UserID, in.Locale, in.Accept)
	if err != nil {
		return nil, err
	}
	items, next, err := a.deps.Notices.Inbox(ctx, in.UserID, before, limit)
	if err != nil {
		return nil, ofRead(err)
	}
	out := &noticesOut{}
	if next != 0 {
		out.Body.Next = formatID(next)
	}
	out.Body.Notices = a.noticesOf(items, prefer)
	return out, nil
}

func (a *API) noticesOf(items []coupon.InboxItem, prefer []string) []Notice {
	out := make([]Notice, len(items))
	for i := range items {
		it := &items[i]
		said := a.deps.Texts.Choose(it.Texts, prefer...)
		display := "inbox"
		if it.Popup {
			display = "popup"
		}
		out[i] = Notice{
			ID: formatID(it.ID), NoticeID: it.NoticeID, Kind: it.Kind, Display: display, Title: said.Title, Text: said.Text, Items: it.Items,
			CreatedAt: it.CreatedAt.UTC(), ValidUntil: instant(it.ValidUntil), ReadAt: instant(it.ReadAt),
		}
	}
	return out
}

func (a *API) countUnread(ctx context.Context, in *userIn) (*unreadOut, error) {
	if err := texts(text("path.user_id", in.UserID, true)); err != nil {
		return nil, err
	}
	n, err := a.deps.Notices.InboxUnread(ctx, in.UserID)
	if err != nil {
		return nil, ofRead(err)
	}
	out := &unreadOut{}
	out.Body.Unread = n
	return out, nil
}

func (a *API) markRead(ctx context.Context, in *readIn) (*readOut, error) {
	b := &in.Body
	if err := texts(text("path.user_id", in.UserID, true)); err != nil {
		return nil, err
	}
	if (b.UpTo == "") == (len(b.IDs) == 0) {
		return nil, badRequest("body", "", "must have either ids or up_to")
	}
	var ids []uint64
	var upTo uint64
	var err error
	if b.UpTo != "" {
		upTo, err = parseID("body.up_to", b.UpTo)
	} else {
		ids, err = parseIDs("body.ids", b.IDs)
	}
	if err != nil {
		return nil, err
	}
	n, err := a.deps.Notices.InboxRead(ctx, in.UserID, ids, upTo)
	if err != nil {
		return nil, err //nolint:wrapcheck // problemOf tells what it means
	}
	out := &readOut{}
	out.Body.Read = n
	return out, nil
}

// parseIDs reads ids, and gives each once.
func parseIDs(location string, all []string) ([]uint64, error) {
	if len(all) > maxRead {
		return nil, badRequest(location, "", "must have at most 900 members")
	}
	ids := make([]uint64, len(all))
	for i, text := range all {
		var err error
		if ids[i], err = parseID(location+"["+formatID(uint64(i))+"]", text); err != nil {
			return nil, err
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

func (a *API) takePopups(ctx context.Context, in *popupsIn) (*popupsOut, error) {
	if err := texts(text("path.user_id", in.UserID, true)); err != nil {
		return nil, err
	}
	limit, err := a.limit(in.Limit)
	if err != nil {
		return nil, err
	}
	prefer, err := a.languages(ctx, in.UserID, in.Locale, in.Accept)
	if err != nil {
		return nil, err
	}
	items, err := a.deps.Notices.TakePopups(ctx, in.UserID, limit)
	if err != nil {
		return nil, ofRead(err)
	}
	out := &popupsOut{}
	out.Body.Popups = a.noticesOf(items, prefer)
	return out, nil
}

// languages are those that the reader prefers, best first: locale, else what the header says, else the user's own.
func (a *API) languages(ctx context.Context, user, locale, accept string) ([]string, error) {
	if locale != "" {
		if _, err := language.Parse(locale); err != nil {
			return nil, badRequest("query.locale", locale, "must be a BCP 47 tag, such as zh-CN")
		}
		return []string{locale}, nil
	}
	tags, _, err := language.ParseAcceptLanguage(accept)
	if err == nil && len(tags) > 0 { // what browsers send is not worth a refusal
		prefer := make([]string, len(tags))
		for i, tag := range tags {
			prefer[i] = tag.String()
		}
		return prefer, nil
	}
	ps, err := a.deps.Notices.Profiles(ctx, []string{user})
	if err != nil {
		return nil, ofRead(err)
	}
	return []string{ps[user].Locale}, nil
}
