package text

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"text/template"

	"golang.org/x/text/feature/plural"
	"golang.org/x/text/language"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// The templates of a locale.
const (
	wordsFile = "words.tmpl"
	suffix    = ".tmpl"
)

// locale is one directory, read.
type locale struct {
	name  string
	tag   language.Tag
	kinds map[coupon.NoticeKind]*template.Template // each with the words
}

func readLocale(files fs.FS, name string) (*locale, error) {
	tag, err := language.Parse(name)
	if err != nil {
		return nil, fmt.Errorf("parse tag: %w", err)
	}
	dir := path.Join(localeDir, name)
	names, err := fs.Glob(files, path.Join(dir, "*"+suffix))
	if err != nil {
		return nil, fmt.Errorf("list templates: %w", err)
	}
	l := &locale{name: name, tag: tag, kinds: make(map[coupon.NoticeKind]*template.Template)}
	for _, file := range names {
		if path.Base(file) == wordsFile {
			continue
		}
		kind := coupon.NoticeKind(strings.TrimSuffix(path.Base(file), suffix))
		l.kinds[kind], err = template.New(string(kind)).Option("missingkey=error").
			Funcs(template.FuncMap{"plural": pluralOf(tag), "pick": pick, "clock": moment.clockText}).
			ParseFS(files, path.Join(dir, wordsFile), file)
		if err != nil {
			return nil, fmt.Errorf("parse template: %w", err)
		}
	}
	return l, nil
}

// direction is which way the locale's script goes.
func (l *locale) direction() (dir, start, finish string) {
	script, _ := l.tag.Script()
	switch script.String() {
	case "Arab", "Hebr", "Syrc", "Thaa", "Nkoo", "Adlm", "Rohg":
		return "rtl", "right", "left"
	default:
		return "ltr", "left", "right"
	}
}

// pick gives the nth of the words, from 1 on.
func pick(n int, words ...string) (string, error) {
	if n < 1 || n > len(words) {
		return "", fmt.Errorf("pick: %d of %d words", n, len(words))
	}
	return words[n-1], nil
}

// pluralOf chooses among pairs of category and word by CLDR's cardinal rules: plural 3 "one" "has" "other" "have".
func pluralOf(tag language.Tag) func(n int, pairs ...string) (string, error) {
	names := map[plural.Form]string{
		plural.Zero: "zero", plural.One: "one", plural.Two: "two", plural.Few: "few", plural.Many: "many", plural.Other: "other",
	}
	return func(n int, pairs ...string) (string, error) {
		if len(pairs)%2 != 0 {
			return "", errors.New("plural: every category needs a word")
		}
		want, other, found := names[plural.Cardinal.MatchPlural(tag, n, 0, 0, 0, 0)], "", false
		for i := 0; i < len(pairs); i += 2 {
			switch pairs[i] {
			case want:
				return pairs[i+1], nil
			case "other":
				other, found = pairs[i+1], true
			}
		}
		if !found {
			return "", fmt.Errorf("plural: no word for %q, and none for \"other\"", want)
		}
		return other, nil
	}
}
