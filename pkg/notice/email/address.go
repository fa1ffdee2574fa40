package email

import (
	"errors"
	"math"
	"net/mail"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// errAddress does not say which: nothing that is logged may.
var errAddress = errors.New("no address that mail can be sent to")

// parse checks a bare address and gives it as it goes into commands and headers: a domain in other letters than ASCII in its
// ASCII form. smtpUTF8 says that the part before the @ is not ASCII, which takes a server that allows it.
func parse(address string) (ready string, smtpUTF8 bool, err error) {
	at := strings.LastIndexByte(address, '@')
	if at < 1 || at > 64 || len(address) > 254 || !utf8.ValidString(address) {
		return "", false, errAddress
	}
	// Quoted and literal forms are legal, but nobody has them whom we would write to.
	if strings.ContainsFunc(address, func(r rune) bool { return r <= ' ' || r >= 0x7f && r < 0xa0 || strings.ContainsRune(`<>()[],;:\"`, r) }) {
		return "", false, errAddress
	}
	local := address[:at]
	domain, ok := ascii(address[at+1:])
	if !ok {
		return "", false, errAddress
	}
	ready = local + "@" + domain
	if a, err := mail.ParseAddress(ready); err != nil || a.Address != ready || a.Name != "" || len(ready) > 254 {
		return "", false, errAddress
	}
	return ready, strings.ContainsFunc(local, func(r rune) bool { return r > 0x7f }), nil
}

// ascii gives the ASCII form of a domain's name (RFC 5891 without its tables: what is not allowed there no server resolves).
func ascii(domain string) (string, bool) {
	domain = strings.ReplaceAll(domain, "。", ".")
	labels := strings.Split(domain, ".")
	for i, label := range labels {
		if strings.ContainsFunc(label, func(r rune) bool { return r > 0x7f }) {
			label = punycode(norm.NFKC.String(strings.ToLower(norm.NFKC.String(label))))
		}
		if !hostLabel(label) {
			return "", false
		}
		labels[i] = label
	}
	domain = strings.Join(labels, ".")
	return domain, len(domain) <= 253
}

func hostLabel(label string) bool {
	if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
		return false
	}
	return !strings.ContainsFunc(label, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-'
	})
}

// punycode encodes one label that is not ASCII (RFC 3492), with its xn-- before it.
func punycode(label string) string {
	const base, tMin, tMax, skew, damp, bias0, n0 = 36, 1, 26, 38, 700, 72, 128
	digit := func(d int) byte {
		if d < 26 {
			return byte('a' + d)
		}
		return byte('0' + d - 26)
	}
	runes := []rune(label)
	out := make([]byte, 0, 2*len(label))
	for _, r := range runes {
		if r < n0 {
			out = append(out, byte(r))
		}
	}
	basic := len(out)
	if basic > 0 {
		out = append(out, '-')
	}
	n, delta, bias, first := rune(n0), 0, bias0, true
	for done := basic; done < len(runes); {
		next := rune(math.MaxInt32)
		for _, r := range runes {
			if r >= n && r < next {
				next = r
			}
		}
		delta += int(next-n) * (done + 1)
		n = next
		for _, r := range runes {
			if r < n {
				delta++
			}
			if r != n {
				continue
			}
			q := delta
			for k := base; ; k += base {
				t := min(max(k-bias, tMin), tMax)
				if q < t {
					break
				}
				out = append(out, digit(t+(q-t)%(base-t)))
				q = (q - t) / (base - t)
			}
			out = append(out, digit(q))
			if first {
				delta /= damp
			} else {
				delta /= 2
			}
			first = false
			done++
			delta += delta / done
			bias = 0
			for delta > (base-tMin)*tMax/2 {
				delta /= base - tMin
				bias += base
			}
			bias += (base - tMin + 1) * delta / (delta + skew)
			delta = 0
		}
		delta++
		n++
	}
	return "xn--" + string(out)
}
