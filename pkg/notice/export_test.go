package notice

import "io/fs"

// TextsFrom reads templates from other files than the embedded ones.
func TextsFrom(files fs.FS, locale string) (*Texts, error) { return newTexts(files, locale) }
