package main

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help says where it goes.
func (c *completionCommand) Help() string {
	return `Prints what makes the shell complete commands and flags:
  bash: lapsectl completion bash > /etc/bash_completion.d/lapsectl, or source <(lapsectl completion bash)
  zsh:  lapsectl completion zsh > "${fpath[1]}/_lapsectl"
  fish: lapsectl completion fish > ~/.config/fish/completions/lapsectl.fish`
}

// Run prints the script.
func (c *completionCommand) Run(k *kong.Context, s *system) error {
	places := placesOf(k.Model.Node, "")
	switch c.Shell {
	case "bash":
		return s.print(bashCompletion(places))
	case "zsh":
		return s.print(zshCompletion(places))
	default:
		return s.print(fishCompletion(places))
	}
}

// place is a command as it is typed (" template create"; empty: none yet), and what may follow.
type place struct {
	path string
	next []offer
}

type offer struct {
	word, help string
	flag, text bool     // text: a value follows
	values     []string // that it may have; none: any
}

// placesOf walks the command line's own model, so that nothing is written down twice.
func placesOf(n *kong.Node, path string) []place {
	here := place{path: path}
	var below []place
	for _, child := range n.Children {
		if child.Hidden || child.Type != kong.CommandNode {
			continue
		}
		here.next = append(here.next, offer{word: child.Name, help: oneLine(child.Help)})
		below = append(below, placesOf(child, path+" "+child.Name)...)
	}
	for _, p := range n.Positional {
		for _, word := range valuesOf(p) {
			here.next = append(here.next, offer{word: word, help: oneLine(p.Help)})
		}
	}
	for _, group := range n.AllFlags(true) {
		for _, f := range group {
			here.next = append(here.next, offer{word: "--" + f.Name, help: oneLine(f.Help), flag: true, text: !f.IsBool(), values: valuesOf(f.Value)})
		}
	}
	return append([]place{here}, below...)
}

func valuesOf(v *kong.Value) []string {
	if v.Enum == "" {
		return nil
	}
	return strings.Split(v.Enum, ",")
}

func oneLine(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	return text
}

// quotedWord is a word as any of the three shells takes it.
func quotedWord(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// paths are those of every command, as alternatives of a pattern.
func paths(places []place, between string) string {
	var out []string
	for _, p := range places {
		if p.path != "" {
			out = append(out, quotedWord(p.path))
		}
	}
	return strings.Join(out, between)
}

func bashCompletion(places []place) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# bash completion of lapsectl; made by lapsectl completion bash
_lapsectl() {
  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" at="" words="" i
  [[ $cur == "=" ]] && cur=""
  [[ $prev == "=" ]] && prev="${COMP_WORDS[COMP_CWORD-2]}"
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$at ${COMP_WORDS[i]}" in
      %s) at="$at ${COMP_WORDS[i]}" ;;
    esac
  done
  case "$at|$prev" in
`, paths(places, "|"))
	for _, p := range places {
		for _, o := range p.next {
			if o.text {
				fmt.Fprintf(&b, "    %s) words=%s ;;\n", quotedWord(p.path+"|"+o.word), quotedWord(strings.Join(o.values, " ")))
			}
		}
	}
	b.WriteString("    *)\n      case \"$at\" in\n")
	for _, p := range places {
		var words []string
		for _, o := range p.next {
			words = append(words, o.word)
		}
		fmt.Fprintf(&b, "        %s) words=%s ;;\n", quotedWord(p.path), quotedWord(strings.Join(words, " ")))
	}
	b.WriteString(`      esac ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o default -F _lapsectl lapsectl
`)
	return b.String()
}

func zshCompletion(places []place) string {
	var b strings.Builder
	fmt.Fprintf(&b, `#compdef lapsectl
# made by lapsectl completion zsh
_lapsectl() {
  local at="" i
  local -a offers
  for ((i = 2; i < CURRENT; i++)); do
    case "$at ${words[i]}" in
      (%s) at="$at ${words[i]}" ;;
    esac
  done
  case "$at|${words[CURRENT-1]}" in
`, paths(places, "|"))
	for _, p := range places {
		for _, o := range p.next {
			switch {
			case len(o.values) > 0:
				fmt.Fprintf(&b, "    (%s) compadd %s; return ;;\n", quotedWord(p.path+"|"+o.word), strings.Join(o.values, " "))
			case o.text:
				fmt.Fprintf(&b, "    (%s) _files; return ;;\n", quotedWord(p.path+"|"+o.word))
			}
		}
	}
	b.WriteString("  esac\n  case \"$at\" in\n")
	for _, p := range places {
		var words []string
		for _, o := range p.next {
			words = append(words, quotedWord(strings.ReplaceAll(o.word, ":", `\:`)+":"+o.help))
		}
		fmt.Fprintf(&b, "    (%s) offers=(%s) ;;\n", quotedWord(p.path), strings.Join(words, " "))
	}
	b.WriteString(`  esac
  _describe lapsectl offers || _files
}
if [ "$funcstack[1]" = "_lapsectl" ]; then _lapsectl "$@"; else compdef _lapsectl lapsectl; fi
`)
	return b.String()
}

func fishCompletion(places []place) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# fish completion of lapsectl; made by lapsectl completion fish
function __lapsectl_at
  set -l at ""
  for w in (commandline -opc)[2..-1]
    switch "$at $w"
      case %s
        set at "$at $w"
    end
  end
  test "$at" = "$argv[1]"
end
`, paths(places, " "))
	for _, p := range places {
		when := "complete -c lapsectl -n " + quotedWord("__lapsectl_at "+`"`+p.path+`"`)
		for _, o := range p.next {
			help := " -d " + quotedWord(o.help)
			switch {
			case !o.flag:
				fmt.Fprintf(&b, "%s -f -a %s%s\n", when, quotedWord(o.word), help)
			case len(o.values) > 0:
				fmt.Fprintf(&b, "%s -l %s -x -a %s%s\n", when, strings.TrimPrefix(o.word, "--"), quotedWord(strings.Join(o.values, " ")), help)
			case o.text:
				fmt.Fprintf(&b, "%s -l %s -r%s\n", when, strings.TrimPrefix(o.word, "--"), help)
			default:
				fmt.Fprintf(&b, "%s -f -l %s%s\n", when, strings.TrimPrefix(o.word, "--"), help)
			}
		}
	}
	return b.String()
}
