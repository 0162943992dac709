#!/usr/bin/perl
# Reads the tables of faults, faults*.txt beside the tests that must catch them, for planted.sh:
#   faults.pl names                every fault, in alphabetical order
#   faults.pl get NAME KEY         the values of KEY, a line each
#   faults.pl plant NAME FOLDER    changes the file in FOLDER, a copy of the tree
#   faults.pl check NAME           says whether `plant` would work on this tree, and a test has the name; changes nothing
# A fault is a block of lines; an empty line or the end of the table ends it:
#   fault NAME: SENTENCE           begins with cpu- or gpu-; no other fault has it; what is wrong with the program that has it
#   KEY: VALUE  KEY: VALUE ...     two blanks between; any number of such lines
#   change: OLD => NEW             what to find, a part of a line, which must stand in the file exactly once; or
#   -LINE                          one or more: the lines to find, which must stand there once, and
#   +LINE                          none or more: the lines that take their place
# The keys:
#   file: PATH                     the file that is changed
#   program: NAME                  gpu-, cpu-rung-: instead of test_gpt2cu, test_emulated for what that alone shows (planted.sh
#                                  --emulated), or the shootout that is run with --check; cpu-: optional, the
#                                  programs that the tests start (train_gpt2 data/make_shards), with the fault too;
#                                  with test_durable among them its tests are run, not those of test_gpt2
#   arch: sm_80                    optional: built as GPUs before Hopper get it
#   run: OPTIONS                   optional: options of the tests or of the shootout; cpu-rung-: first the rung's name
#   test: NAME                     instead of run: --test-case=NAME, with a blank for each ? that stands for one
#   expect: PATTERN                what must be printed, a basic regular expression; one or more
use strict;
use warnings;

my @KEYS = qw(file program arch run test expect);
my $folder = $0 =~ s{[^/]*$}{}r;
my (%faults, $fault, $name);

sub fail { print STDERR "faults: @_\n"; exit 1 }

for my $table (sort glob("${folder}{*,../../python/test}/faults*.txt")) {
    open(my $in, '<', $table) or fail("$table: $!");
    while (my $line = <$in>) {
        chomp $line;
        my $where = "$table:$.";
        if ($line eq '') { undef $fault; next }
        if ($line =~ /^fault (\S+): (.+)$/) {
            ($name, my $wrong) = ($1, $2);
            fail("$where: '$name' must begin with cpu- or gpu-") if $name !~ /^[cg]pu-/;
            fail("$where: there are two faults '$name'; the other is at $faults{$name}{where}") if $faults{$name};
            $fault = $faults{$name} = {where => $where, wrong => [$wrong], find => '', replace => ''};
        } elsif (!$fault) {
            fail("$where: a block begins with 'fault NAME: what is wrong', not with '$line'");
        } elsif ($line =~ /^([-+])(.*)$/) {
            $fault->{$1 eq '-' ? 'find' : 'replace'} .= "$2\n";
        } elsif ($line =~ /^change: (.+) => (.+)$/) {
            fail("$where: '$name' has two changes") if $fault->{find} ne '';
            @$fault{qw(find replace part)} = ($1, $2, 1);
        } else {
            for my $part (split /  (?=\w+: )/, $line) {
                my ($key, $value) = $part =~ /^(\w+): *(.*)$/;
                fail("$where: expected one of @KEYS with a colon, or - or + and a line; found '$part'")
                    if !defined $key || !grep { $_ eq $key } @KEYS;
                ($key, $value) = ('run', '--test-case=' . $value =~ tr/ /?/r) if $key eq 'test';
                push @{$fault->{$key}}, $value;
            }
        }
    }
    undef $fault;
}
for my $each (sort keys %faults) {
    my $block = $faults{$each};
    $block->{program} //= ['test_gpt2cu'] if $each =~ /^gpu-/;
    for my $key (qw(wrong file expect)) {
        fail("$block->{where}: '$each' has no $key: line") if !$block->{$key};
    }
    fail("$block->{where}: '$each' has no line to find") if $block->{find} eq '';
    fail("$block->{where}: '$each' has a change: and lines") if $block->{part} && "$block->{find}$block->{replace}" =~ /\n/;
    fail("$block->{where}: '$each' changes nothing") if $block->{find} eq $block->{replace};
    for my $key (qw(file program arch run)) {
        fail("$block->{where}: '$each' has several $key: lines") if @{$block->{$key} // []} > 1;
    }
    my $arch = $block->{arch}[0] // 'sm_80';
    fail("$block->{where}: '$each' has arch: $arch; sm_80 is the only one there is") if $arch ne 'sm_80';
}

# the text of the fault's file below $tree, with the fault in it
sub changed {
    my ($block, $tree) = @_;
    my $path = "$tree/$block->{file}[0]";
    open(my $in, '<', $path) or fail("$block->{where}: $path: $!");
    my $text = join '', "\n", <$in>;
    my ($find, $replace) = map { $block->{part} ? $_ : "\n$_" } @$block{qw(find replace)};
    my $count = () = $text =~ /(?=\Q$find\E)/g;  # lookahead: two places may share lines
    fail("$block->{where}: the lines to find stand $count times in $path, they must stand there once") if $count != 1;
    return ($path, substr($text =~ s/\Q$find\E/$replace/r, 1));
}

# the names of all tests; doctest ends a template's with its type in <>, here <
sub tests {
    my @names;
    for my $file (glob("${folder}{*,../emulate}/*.{cpp,cu}")) {
        open(my $in, '<', $file) or next;
        my $text = join '', <$in>;
        push @names, $1 eq '_TEMPLATE' ? "$2<" : $2 while $text =~ /^ *TEST_CASE(\w*)\((?:\w+,)?\s*"([^"]+)"/mg;
    }
    return @names;
}

# a filter that no test has the name of: doctest runs nothing and passes
sub check_filter {
    my ($block) = @_;
    my ($filter) = "@{$block->{run} // []}" =~ /--test-case=(\S+)/ or return;
    for my $part (split /,/, $filter) {
        my $pattern = join '', map { $_ eq '*' ? '.*' : $_ eq '?' ? '.' : quotemeta } split //, $part;
        fail("$block->{where}: no test has the name '$part'") if !grep { /^$pattern$/i } tests();
    }
}

my ($command, $wanted, $argument) = @ARGV;
fail("commands: names; get NAME KEY; plant NAME FOLDER; check NAME") if !$command;
if ($command eq 'names') { print map { "$_\n" } sort keys %faults; exit 0 }
my $block = $faults{$wanted // ''} or fail("no fault is called '" . ($wanted // '') . "'");
if ($command eq 'get') {
    print map { "$_\n" } @{$block->{$argument} // []};
} elsif ($command eq 'check') {
    changed($block, '.');
    check_filter($block);
} elsif ($command eq 'plant') {
    my ($path, $text) = changed($block, $argument);
    open(my $out, '>', $path) or fail("$path: $!");
    print $out $text;
    close($out) or fail("$path: $!");
} else {
    fail("no command '$command'");
}
