package demo

import (
	"fmt"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/ladder"
)

// ShortLadder makes a ladder of 36 queues in place of 182, up to nearly three hours, for brokers that are killed again and again and
// must be back soon. What ends later is scheduled again from its top.
func ShortLadder(c *ladder.Config) {
	const digits = 9
	c.Levels = []ladder.Level{
		{Name: "k", Unit: 1000 * time.Second, Digits: digits},
		{Name: "c", Unit: 100 * time.Second, Digits: digits},
		{Name: "t", Unit: 10 * time.Second, Digits: digits},
		{Name: "s", Unit: time.Second, Digits: digits},
	}
}

// ShortLevels is the setting ladder.levels of workers on a ShortLadder.
func ShortLevels() string {
	var c ladder.Config
	ShortLadder(&c)
	var parts []string
	for _, l := range c.Levels {
		parts = append(parts, fmt.Sprintf("{name: %s, unit: %s, digits: %d}", l.Name, l.Unit, l.Digits))
	}
	return "[" + strings.Join(parts, ", ") + "]"
}
