#!/usr/bin/env bash
# Debian's Ruby finds neither the gems that come with Ruby nor those of Debian's packages while GEM_PATH is set, as Lambda
# sets it for every function.
#
# Debian 13, ruby3.3 3.3.8-2 and ruby-aws-sdk-s3 1.170.1-1. GEM_PATH adds folders elsewhere: RubyGems looks in Gem.default_dir,
# too, where Ruby's own build puts the gems it comes with. Debian puts these into /usr/lib/ruby/gems, and gems of packages into
# /usr/share/rubygems-integration, which are in Gem.default_path alone; packages without a gem lie in vendor_ruby and are
# found. So of one SDK aws-sdk-s3 is loaded, and aws-sdk-core, which it needs, is not.
#
# Seen:
#   without GEM_PATH: rexml and aws-sdk-s3 load
#   with it: cannot load such file -- rexml/document, cannot load such file -- aws-sdk-core
#   with Gem.default_path added to it: rexml and aws-sdk-s3 load
# As root, with mmdebstrap.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf --one-file-system "$folder"' EXIT
chmod 755 "$folder"
mmdebstrap --quiet --mode=root --variant=extract --format=directory \
    --include=base-files,ruby3.3=3.3.8-2,ruby-aws-sdk-s3=1.170.1-1 --aptopt='Acquire::Check-Valid-Until "false"' trixie "$folder/root"

loads() { # GEM_PATH CODE
    env -i ${1:+"GEM_PATH=$1"} /usr/sbin/chroot "$folder/root" /usr/bin/ruby3.3 -e "
        $2
        tried = %w[rexml/document aws-sdk-s3].map do |name|
          require name
          'loads'
        rescue LoadError => error
          error.message
        end
        puts tried.join(', ')"
}

without=$(loads '' '')
with=$(loads /opt/ruby/gems/3.3.0 '')
added=$(loads /opt/ruby/gems/3.3.0 'Gem.paths = { "GEM_PATH" => (Gem.path + Gem.default_path).join(":") }')
printf '%s\n' "without: $without" "with: $with" "added: $added"
[ "$without" = "loads, loads" ]
[ "$with" = "cannot load such file -- rexml/document, cannot load such file -- aws-sdk-core" ]
[ "$added" = "loads, loads" ]
