# Which part of the groups a commit runs. Takes PARTS of matrix.sh.
#
# By the commit's hash, and not by how many commits there are: a submission may have several commits, and five at a time would run the
# same part again and again. A clone without the history chooses as any other.

# The number of the part that a commit with this hash runs.
part_of() { # HASH
	echo $((16#${1:0:7} % ${#PARTS[@]}))
}
