package cli

import "testing"

func TestDidYouMean(t *testing.T) {
	names := []string{"apply", "history", "list", "plan", "show"}
	for word, want := range map[string]string{
		"lst": "list", "lists": "list", "lost": "list", "lsit": "list", "ilst": "list", "planß": "plan",
		"histroy": "history", "aply": "apply",
		"": "", "l": "", "ls": "", "all": "", "a": "", "applying": "", "exhibit": "",
	} {
		if want != "" {
			want = "; did you mean " + want + "?"
		}
		if got := didYouMean(word, names); got != want {
			t.Errorf("%s: %q, want %q", word, got, want)
		}
	}
}
