# The table of results: one row a kernel and nft, one column a group, the reasons below it.
#
# Takes lines as `judge` prints them on standard input, gives Markdown.

# "6.1.176-1 (bookworm)" and the like: the version of what was fetched.
version_of() { # SUITE kernel|nft
	case $2 in
	kernel) sed -n 's/^linux-image-.*_\(.*\)_amd64.deb/\1/p' "$CACHE/$1/kernel.list" ;;
	nft) sed -n 's/^nftables_\(.*\)-.*_amd64.deb/\1/p' "$CACHE/$1/nft.list" | sed 's/^[0-9]*%3a//' ;;
	esac
}

table() { # GROUP...
	local kernel nft group line rows results=$WORK/results
	printf '| kernel | nft |'; printf ' %s |' "$@"; echo
	printf '|---|---|'; printf '%s' "${@/*/---|}"; echo
	rows=$(awk '!seen[$1 " " $2]++ { print $1, $2 }' "$results")
	while read -r kernel nft; do
		printf '| %s (%s) | %s (%s) |' "$(version_of "$kernel" kernel)" "$kernel" "$(version_of "$nft" nft)" "$nft"
		for group in "$@"; do
			line=$(awk -v k="$kernel" -v n="$nft" -v g="$group" '$1 == k && $2 == n && $3 == g { print $4 }' "$results")
			printf ' %s |' "${line:-see own nft}"
		done
		echo
	done <<<"$rows"
	printf '\nWhat was said beside the verdicts (seconds are the guest'\''s):\n\n'
	awk '{ printf "- %s, nft of %s, %s: **%s**%s", $1, $2, $3, $4, $5 == "-" ? "" : ", " $5 " s"
		$1 = $2 = $3 = $4 = $5 = ""; sub(/^ */, ""); print $0 == "" ? "" : ": " $0 }' "$results"
}
