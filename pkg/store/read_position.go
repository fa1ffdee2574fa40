package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// place is where a row stands in an order by instant and id.
type place struct {
	at time.Time
	id uint64
}

const lastID = 1<<64 - 1

// beforeAll and afterAll stand outside of every row that a table may hold.
//
//nolint:gochecknoglobals // constants
var (
	beforeAll = place{at: epoch}
	afterAll  = place{at: coupon.Never.Add(12 * time.Hour), id: lastID}
)

func (p place) less(o place) bool { return p.at.Before(o.at) || (p.at.Equal(o.at) && p.id < o.id) }

// position is where a page ended: the section of the list, and the last row that was looked at there.
type position struct {
	section uint8
	place
}

const (
	positionVersion = 1
	sealBytes       = 8
	positionBytes   = 1 + sealBytes + 1 + 8 + 8
)

// token writes the position as readers carry it. It belongs to the query: the seal holds both, so that a position
// that was changed or that another query gave is known as such.
func (p position) token(query string) string {
	b := make([]byte, 1+sealBytes, positionBytes)
	b[0] = positionVersion
	b = append(b, p.section)
	b = binary.BigEndian.AppendUint64(b, uint64(p.at.UnixMilli()))
	b = binary.BigEndian.AppendUint64(b, p.id)
	copy(b[1:], seal(query, b[1+sealBytes:]))
	return base64.RawURLEncoding.EncodeToString(b)
}

func seal(query string, body []byte) []byte {
	sum := sha256.Sum256(append(fmt.Appendf(nil, "%d %d:%s ", positionVersion, len(query), query), body...))
	return sum[:sealBytes]
}

// parsePosition reads a token of the same query; coupon.ErrPosition if it is not one.
func parsePosition(token, query string) (position, error) {
	if len(token) != base64.RawURLEncoding.EncodedLen(positionBytes) {
		return position{}, coupon.ErrPosition // the decoder passes over line breaks
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) != positionBytes || b[0] != positionVersion {
		return position{}, coupon.ErrPosition
	}
	body := b[1+sealBytes:]
	if !bytes.Equal(b[1:1+sealBytes], seal(query, body)) {
		return position{}, coupon.ErrPosition
	}
	return position{section: body[0], place: place{
		at: time.UnixMilli(int64(binary.BigEndian.Uint64(body[1:]))).UTC(),
		id: binary.BigEndian.Uint64(body[9:]),
	}}, nil
}
