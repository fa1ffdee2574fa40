package notice

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"text/template"

	"golang.org/x/text/feature/plural"
	"golang.org/x/text/language"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// A directory for each locale, named by its BCP 47 tag, with a template for each kind that defines "title" and "text".
//
//go:embed locales
var localeFiles embed.FS

// fallback is the locale that has every kind.
const fallback = "en"

// Locales lists the locales that there are, in order.
func Locales() []string {
	entries, err := fs.ReadDir(localeFiles, "locales")
	if err != nil {
		return nil // embedded: cannot fail
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

// Texts renders notices in every language. Safe for concurrent use.
type Texts struct {
	locales []string // the default first
	matcher language.Matcher
	kinds   map[coupon.NoticeKind]map[string]*template.Template // by locale
}

// textData is what a template may use.
type textData struct {
	Items int // members of the notice, at least 1
}

// NewTexts reads the embedded templates; locale is the one of users who ask for none that there is. Every template
// is tried here.
func NewTexts(locale string) (*Texts, error) {
	return newTexts(localeFiles, locale)
}

func newTexts(files fs.FS, locale string) (*Texts, error) {
	t := &Texts{kinds: make(map[coupon.NoticeKind]map[string]*template.Template)}
	dirs, err := fs.ReadDir(files, "locales")
	if err != nil {
		return nil, fmt.Errorf("read locales: %w", err)
	}
	for _, dir := range dirs {
		if err := t.load(files, dir.Name()); err != nil {
			return nil, fmt.Errorf("locale %s: %w", dir.Name(), err)
		}
	}
	at := slices.Index(t.locales, locale)
	if at < 0 {
		return nil, fmt.Errorf("locale: must be of %v, got %q", t.locales, locale)
	}
	t.locales = slices.Insert(slices.Delete(t.locales, at, at+1), 0, locale)
	tags := make([]language.Tag, len(t.locales))
	for i, l := range t.locales {
		tags[i] = language.Make(l)
	}
	t.matcher = language.NewMatcher(tags)
	return t, t.try()
}

func (t *Texts) load(files fs.FS, locale string) error {
	tag, err := language.Parse(locale)
	if err != nil {
		return fmt.Errorf("parse tag: %w", err)
	}
	names, err := fs.Glob(files, path.Join("locales", locale, "*.tmpl"))
	if err != nil {
		return fmt.Errorf("list templates: %w", err)
	}
	t.locales = append(t.locales, locale)
	for _, name := range names {
		kind := coupon.NoticeKind(strings.TrimSuffix(path.Base(name), ".tmpl"))
		tmpl, err := template.New(string(kind)).Option("missingkey=error").
			Funcs(template.FuncMap{"plural": pluralOf(tag)}).ParseFS(files, name)
		if err != nil {
			return fmt.Errorf("parse template: %w", err)
		}
		if t.kinds[kind] == nil {
			t.kinds[kind] = make(map[string]*template.Template)
		}
		t.kinds[kind][locale] = tmpl
	}
	return nil
}

// try renders every kind in every locale; one that the fallback lacks is an error.
func (t *Texts) try() error {
	var errs []error
	for kind, locales := range t.kinds {
		if locales[fallback] == nil {
			errs = append(errs, fmt.Errorf("kind %s: no template in %s", kind, fallback))
		}
		for _, n := range []int{1, 2, 5, 11, 21, 500} {
			if _, err := t.Render(kind, n); err != nil {
				errs = append(errs, err)
				break
			}
		}
	}
	return errors.Join(errs...)
}

// Render gives title and text of a notice of so many items, by locale. A locale without this kind is left out: its
// readers get the fallback.
func (t *Texts) Render(kind coupon.NoticeKind, items int) (map[string]coupon.NoticeText, error) {
	if len(t.kinds[kind]) == 0 {
		return nil, fmt.Errorf("render notice: no template for kind %q", kind)
	}
	out := make(map[string]coupon.NoticeText, len(t.locales))
	for locale, tmpl := range t.kinds[kind] {
		var title, text strings.Builder
		data := textData{Items: items}
		if err := errors.Join(tmpl.ExecuteTemplate(&title, "title", data), tmpl.ExecuteTemplate(&text, "text", data)); err != nil {
			return nil, fmt.Errorf("render notice of kind %s in %s: %w", kind, locale, err)
		}
		out[locale] = coupon.NoticeText{Title: title.String(), Text: text.String()}
	}
	return out, nil
}

// Match gives the locale for a reader who prefers these tags, best first; tags that cannot be read are passed over.
func (t *Texts) Match(prefer ...string) string {
	tags := make([]language.Tag, 0, len(prefer))
	for _, p := range prefer {
		if tag, err := language.Parse(p); err == nil {
			tags = append(tags, tag)
		}
	}
	_, i, confidence := t.matcher.Match(tags...)
	if confidence == language.No {
		i = 0
	}
	return t.locales[i]
}

// Choose gives the text for such a reader out of rendered ones: of the matching locale, else of the fallback.
func (t *Texts) Choose(texts map[string]coupon.NoticeText, prefer ...string) coupon.NoticeText {
	if text, ok := texts[t.Match(prefer...)]; ok {
		return text
	}
	return texts[fallback]
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
