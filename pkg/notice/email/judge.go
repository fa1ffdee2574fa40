package email

import (
	"context"
	"errors"
	"net"
	"net/textproto"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/notice"
)

// stage is a step of sending a letter.
type stage string

const (
	stageConnect stage = "connect" // dialling and the greeting
	stageTLS     stage = "tls"
	stageHello   stage = "hello"
	stageAuth    stage = "auth"
	stageFrom    stage = "from"
	stageTo      stage = "to"
	stageContent stage = "content" // DATA, and what follows up to the final dot
	stageDot     stage = "dot"     // its reply
)

// failure is where sending ended, and why.
type failure struct {
	at  stage
	err error
}

// stale reports whether a connection that had idled turned out to be gone: nothing of this letter was taken.
func (f *failure) stale() bool {
	var said *textproto.Error
	return f.at == stageFrom && (!errors.As(f.err, &said) || said.Code == 421)
}

// judge says what became of a letter.
func (e *Email) judge(ctx context.Context, f *failure) notice.Result {
	var said *textproto.Error
	var late net.Error
	if !errors.As(f.err, &said) {
		reason := "cut"
		switch {
		case errors.Is(f.err, errAddress):
			return notice.Result{Outcome: notice.Permanent, Reason: "bad_address"}
		case ctx.Err() != nil || errors.As(f.err, &late) && late.Timeout():
			reason = "timeout"
		case f.at == stageConnect || f.at == stageTLS || f.at == stageAuth:
			reason = string(f.at)
		}
		return notice.Result{Outcome: notice.Retry, Reason: reason}
	}
	reason := "smtp_" + strconv.Itoa(said.Code)
	if said.Code >= 400 && said.Code <= 499 {
		if until, asked := e.throttled(said); asked {
			return notice.Result{Outcome: notice.Throttled, Until: until, Reason: reason}
		}
		return notice.Result{Outcome: notice.Retry, Reason: reason, MessageOnly: e.ofMailbox(f.at, said)}
	}
	switch {
	// Who we are is refused, not whom we write to: the channel's fault.
	case f.at == stageAuth || said.Code == 530 || said.Code == 534 || said.Code == 535 || said.Code == 538:
		return notice.Result{Outcome: notice.Retry, Reason: "auth"}
	case f.at == stageFrom:
		return notice.Result{Outcome: notice.Retry, Reason: "sender_refused"}
	case f.at == stageTo && said.Code >= 500 && e.hints.unknown.MatchString(said.Msg):
		return notice.Result{Outcome: notice.Permanent, Reason: "bad_address"}
	// Or by what we are known for: as long as that holds every letter would be given up.
	case said.Code >= 500 && e.hints.sender.MatchString(said.Msg):
		return notice.Result{Outcome: notice.Retry, Reason: "sender_refused"}
	case (f.at == stageTo || f.at == stageContent || f.at == stageDot) && said.Code >= 500:
		return notice.Result{Outcome: notice.Permanent, Reason: reason}
	}
	return notice.Result{Outcome: notice.Retry, Reason: reason}
}

// hints tells what servers say to those who send too much from what they say of one mailbox.
type hints struct{ throttled, mailbox, wait, unknown, sender *regexp.Regexp }

func newHints() hints {
	return hints{
		throttled: regexp.MustCompile(`(?i)^4\.(7\.\d+|3\.2|4\.5)\b|\brate\b|throttl|too (many|fast|much)|slow down|overload|\bbusy\b`),
		mailbox:   regexp.MustCompile(`(?i)^4\.(2\.\d+|1\.[1-46])\b|gr[ae]y-?list|mailbox (is )?full|over quota|quota exceeded`),
		// The address: there is none such.
		unknown: regexp.MustCompile(`^5\.1\.([0-6]|10)\b`),
		// The sender: policy and authentication, his address, or in words alone, whatever the code.
		sender: regexp.MustCompile(`(?i)^5\.(7\.\d+|1\.[78])\b|\brelay|black-?list|block-?list|deny-?list|\b(ip|sender|host|client)\b.{0,80}\b(block|reject|denied|refus|banned)|` +
			`\b(blocked|banned) (by|using|for|due)\b|\b(spf|dkim|dmarc|dnsbl|rbl|spamhaus|reputation)\b`),
		wait: regexp.MustCompile(`(?i)\b(?:in|for|after|wait)\s+(\d{1,5})\s*(s|m|h)(?:ec|in|our|r)?`),
	}
}

// ofMailbox reports whether a temporary refusal is of this recipient alone: greylisted, full, out of order.
func (e *Email) ofMailbox(at stage, said *textproto.Error) bool {
	return (at == stageTo || at == stageContent || at == stageDot) && said.Code != 421 && e.hints.mailbox.MatchString(said.Msg)
}

// throttled reports whether a temporary refusal is of the whole channel, and until when, zero if that is not said. What is of
// a mailbox is not.
func (e *Email) throttled(said *textproto.Error) (until time.Time, asked bool) {
	if said.Code > 452 || e.hints.mailbox.MatchString(said.Msg) || !e.hints.throttled.MatchString(said.Msg) {
		return time.Time{}, false
	}
	found := e.hints.wait.FindStringSubmatch(said.Msg)
	if found == nil {
		return time.Time{}, true
	}
	count, err := strconv.Atoi(found[1])
	if err != nil {
		return time.Time{}, true
	}
	unit := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}[strings.ToLower(found[2])]
	return e.now().Add(min(max(time.Duration(count)*unit, time.Second), e.cfg.RetryAfterMax)), true
}
