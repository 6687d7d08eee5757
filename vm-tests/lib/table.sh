# The table of results: one row a kernel and nft, one column a group, the reasons below it.
#
# Takes $WORK/results, lines as `judge` gives them, and $WORK/versions, lines of "kernel|nft SUITE VERSION" for what was fetched;
# gives Markdown. Asks for nothing that these two do not hold: a run may be about one suite only.

# Notes the version of what was fetched, in the place of what an earlier run noted.
note_version() { # SUITE kernel|nft
	local version
	case $2 in
	kernel) version=$(sed -n 's/^linux-image-.*_\(.*\)_'"$ARCH"'.deb/\1/p' "$CACHE/$1/kernel.list") ;;
	nft) version=$(sed -n 's/^nftables_\(.*\)-.*_'"$ARCH"'.deb/\1/p' "$CACHE/$1/nft.list" | sed 's/^[0-9]*%3a//') ;;
	esac
	[ -n "$version" ] || { echo "no version of $2 in what was fetched from $1" >&2; return 1; }
	sed -i "/^$2 $1 /d" "$WORK/versions"
	echo "$2 $1 $version" >>"$WORK/versions"
}

version_of() { # SUITE kernel|nft
	awk -v suite="$1" -v what="$2" '$1 == what && $2 == suite { print $3 }' "$WORK/versions"
}

# Takes results over, in the place of earlier ones of the same kernel, nft and group. What guests of one kernel say about its log is
# one verdict, the worst, and only a whole run makes a bad one good.
add_results() { # FILE...
	awk '
		{ key = $1 " " $2 " " $3 }
		FILENAME == old { kept[key] = $0; order[++n] = key; next }
		!(key in fresh) { fresh[key] = $0; if (!(key in kept)) order[++n] = key }
		$4 == "fail" { fresh[key] = $0 }
		kept[key] ~ / kernel-log fail / { fresh[key] = kept[key] }
		END { for (i = 1; i <= n; i++) print order[i] in fresh ? fresh[order[i]] : kept[order[i]] }
	' old="$WORK/results" "$WORK/results" "$@" >"$WORK/results.new"
	mv "$WORK/results.new" "$WORK/results"
}

# The groups that results are about, in the order of matrix.sh.
groups_of_results() {
	local group
	for group in "${GROUPS_PER_KERNEL[@]}" "${GROUPS_PER_NFT[@]}" kernel-log end; do
		if grep -q "^[^ ]* [^ ]* $group " "$WORK/results"; then echo "$group"; fi
	done
}

table() {
	local kernel nft group line groups results=$WORK/results
	mapfile -t groups < <(groups_of_results)
	printf '| kernel | nft |'; printf ' %s |' "${groups[@]}"; echo
	printf '|---|---|'; printf '%s' "${groups[@]/*/---|}"; echo
	for kernel in "${SUITES[@]}"; do
		for nft in "${SUITES[@]}"; do
			grep -q "^$kernel $nft " "$results" || continue
			printf '| %s (%s) | %s (%s) |' "$(version_of "$kernel" kernel)" "$kernel" "$(version_of "$nft" nft)" "$nft"
			for group in "${groups[@]}"; do
				line=$(awk -v k="$kernel" -v n="$nft" -v g="$group" '$1 == k && $2 == n && $3 == g { print $4 }' "$results")
				[ -n "$line" ] || [ "$nft" = "$kernel" ] || [[ " ${GROUPS_PER_NFT[*]} " == *" $group "* ]] || line="once a kernel"
				printf ' %s |' "${line:-not run}"
			done
			echo
		done
	done
	printf '\nDetails of each group (seconds are the guest'\''s):\n\n'
	awk '{ printf "- %s, nft of %s, %s: **%s**%s", $1, $2, $3, $4, $5 == "-" ? "" : ", " $5 " s"
		$1 = $2 = $3 = $4 = $5 = ""; sub(/^ */, ""); sub(/ *$/, ""); print $0 == "" ? "" : ": " $0 }' "$results"
	printf '\nSeconds of all guests together, by group:'
	awk '$5 != "-" { if (!($3 in sum)) order[++n] = $3; sum[$3] += $5; all += $5 }
		END { for (i = 1; i <= n; i++) printf " %s %d,", order[i], sum[order[i]]; printf " all %d.\n", all }' "$results"
}

# The table of deploy/COMPATIBILITY.md: a row a kernel.
summary() {
	local kernel results=$WORK/results
	echo 'Tested in virtual machines, with the details in [vm-tests/RESULTS.md](../vm-tests/RESULTS.md):'
	echo
	echo '| kernel | tests | nft that lists the rules |'
	echo '|---|---|---|'
	for kernel in "${SUITES[@]}"; do
		printf '| %s (%s) | ' "$(version_of "$kernel" kernel)" "$kernel"
		awk -v k="$kernel" '$1 == k { count[$4]++; if ($3 == "restart") restart = $4; if ($3 == "old-kernel") old = $4 }
			END { if (restart == "n/a" && old == "pass") printf "refused, as it is too old"
				else printf "%d passed%s", count["pass"], count["fail"] ? ", " count["fail"] " failed" : "" }' "$results"
		printf ' | '
		listing_nfts "$kernel"
		echo ' |'
	done
}

# The versions of nft whose listings of the rules were tested on a kernel and are right.
listing_nfts() { # KERNEL
	local suite line=''
	for suite in "${SUITES[@]}"; do
		if grep -q "^$1 $suite listing pass" "$WORK/results"; then line+="${line:+, }$(version_of "$suite" nft)"; fi
	done
	printf '%s' "${line:-none}"
}

# What is missing of a whole run, or failed; nothing where nothing is wrong.
wrong_with_results() {
	local kernel suite group
	if [ "$ARCH" = amd64 ]; then
		for kernel in "${SUITES[@]}"; do
			for group in "${GROUPS_PER_KERNEL[@]}"; do
				grep -q "^$kernel $kernel $group " "$WORK/results" || echo "$group was not run on $kernel"
			done
			for group in "${GROUPS_PER_NFT[@]}"; do
				for suite in "${SUITES[@]}"; do
					grep -q "^$kernel $suite $group " "$WORK/results" || echo "$group was not run on $kernel with nft of $suite"
				done
			done
		done
	fi
	awk '$4 != "pass" && $4 != "n/a" { print "failed: " $0 }' "$WORK/results"
}

# RESULTS.md has the matrix, and below it a section about arm64.
matrix_of_results() { sed '/^## arm64$/,$d' vm-tests/RESULTS.md; }
arm64_of_results() { sed -n '/^## arm64$/,$p' vm-tests/RESULTS.md; }

written_by() {
	echo "Written by \`vm-tests/run --record\` on $(date -u +%F), of commit $(uniq "$WORK/commits" | paste -sd ' ')."
}

# Writes the results where people look for them: RESULTS.md, of which an architecture writes its own section, and the part of
# deploy/COMPATIBILITY.md between the two markers.
record_results() {
	local wrong other results=$WORK/RESULTS.md page=deploy/COMPATIBILITY.md begin='<!-- kernels: written by vm-tests/run --record -->' end='<!-- kernels: end -->'
	wrong=$(wrong_with_results)
	if [ -n "$wrong" ]; then printf 'nothing is recorded:\n%s\n' "$wrong" >&2; return 1; fi
	if [ "$ARCH" != amd64 ]; then
		{ printf '%s\n\n## %s\n\n%s\n\n' "$(matrix_of_results)" "$ARCH" "$(written_by)"; table; } >"$results"
		cp "$results" vm-tests/RESULTS.md
		return
	fi
	{
		printf '# Results of the matrix\n\n%s README.md beside this file says how to read it.\n\n' "$(written_by)"
		table
		other=$(arm64_of_results)
		[ -z "$other" ] || printf '\n%s\n' "$other"
	} >"$results"
	cp "$results" vm-tests/RESULTS.md
	grep -qxF -e "$begin" "$page" && grep -qxF -e "$end" "$page" || { echo "$page lacks the markers of the kernels" >&2; return 1; }
	summary >"$WORK/summary.md"
	awk -v begin="$begin" -v end="$end" -v part="$WORK/summary.md" '
		$0 == begin { print; while ((getline line <part) > 0) print line; skip = 1; next }
		$0 == end { skip = 0 }
		!skip' "$page" >"$WORK/page.md"
	cp "$WORK/page.md" "$page"
}
