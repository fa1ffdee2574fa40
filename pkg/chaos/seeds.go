package chaos

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ReadSeeds reads a list of regressions: a line each, as Result.Line writes them, with # before what is for people.
func ReadSeeds(text string) ([]Config, error) {
	var out []Config
	var errs []error
	n := 0
	for line := range strings.Lines(text) {
		n++
		line, _, _ = strings.Cut(line, "#")
		if strings.TrimSpace(line) == "" {
			continue
		}
		c, err := readSeed(line)
		if err != nil {
			errs = append(errs, fmt.Errorf("line %d: %w", n, err))
			continue
		}
		out = append(out, c)
	}
	return out, errors.Join(errs...)
}

func readSeed(line string) (c Config, err error) {
	for field := range strings.FieldsSeq(line) {
		name, value, _ := strings.Cut(field, "=")
		switch name {
		case "seed":
			c.Seed, err = strconv.ParseUint(value, 10, 64)
		case "coupons":
			c.Coupons, err = strconv.Atoi(value)
		case "for":
			c.For, err = time.ParseDuration(value)
		case "faults":
			c.Faults = strings.Split(value, ",")
		default:
			err = errors.New("is none of seed, coupons, for, faults")
		}
		if err != nil {
			return c, fmt.Errorf("%s: %w", field, err)
		}
	}
	return c, c.Validate()
}
