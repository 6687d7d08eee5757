# What the scripts of a release have in common: its version, and what the two ways to a .deb share (deploy/package makes one from a binary,
# deploy/source-package the source package that builds one).
# Sourced by bash, in the folder of the repository; not a command.

# The files of debian/ that are not made. The control file also has what deploy/package says of the .deb.
DEBIAN=deploy/node/debian

project_version() { sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml; }

# Debian's changelog; the time is SOURCE_DATE_EPOCH.
changelog() { # VERSION DISTRIBUTION
	printf 'kube-proxy-nft (%s) %s; urgency=medium\n\n  * Release %s. CHANGELOG.md has what changed.\n\n -- %s  %s\n' "$1" "$2" "$(project_version)" \
		"$(sed -n 's/^Maintainer: //p' "$DEBIAN/control")" "$(LC_ALL=C date --utc --rfc-email --date "@$SOURCE_DATE_EPOCH")"
}
