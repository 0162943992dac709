#!/usr/bin/perl
# Makes of a file in CUDA C++ one that g++ compiles, for machine.h to run: rewrite.pl FILE > RESULT.
# What g++ cannot read are these things; all else stays as it is, on the lines where it was.
#   kernel<<<grid, block, shared, stream>>>(x);   ->  launch({grid, block, shared, stream}, [&](auto... with) { kernel(with...); }, x);
#   extern __shared__ T name[];                   ->  auto* name = dynamic_shared<T>();
#   __shared__ T name[n];                         ->  auto& name = static_shared<..., T[n]>();
#   asm volatile("text" : outs : ins : ...);      ->  an Instruction("text"), called with outs and ins
#   __launch_bounds__(n)                          ->  nothing
use strict;
use warnings;

my ($file) = @ARGV;
local $/;
open(my $in, '<', $file) or die "rewrite.pl: $file: $!\n";
my $text = <$in>;

my $string = qr/"(?:[^"\\]|\\.)*"/;
my $round  = qr/(\((?:[^()"]++|$string|(?-1))*\))/;    # from ( to its ), past what strings hold

# alignment, type, "a[n], b"
sub variables {
    my ($aligned, $type, $names) = @_;
    my $all = '';
    while ($names =~ /(\w+)((?:\[[^\]]*\])*)(?:,\s*|$)/g) {
        $all .= "auto& $1 = ::emulation::static_shared<decltype([] {}), $type$2, $aligned>(); ";
    }
    return $all;
}

# an asm's operands, as "=r"(x), "l"(y)
sub operands {
    my ($list, $how) = @_;
    my @all;
    while ($list =~ /"[=+]?[rlfnd]"\s*$round/g) { push @all, "::emulation::$how$1"; }
    return @all;
}

sub instruction {
    my ($body) = @_;
    my @parts = ('');
    while ($body =~ /\G($string|$round|::|:|[^":()]+)/gs) {
        my $piece = $1;
        if    ($piece eq '::') { push @parts, '', ''; }
        elsif ($piece eq ':')  { push @parts, ''; }
        else                   { $parts[-1] .= $piece; }
    }
    my ($code, $outs, $ins) = (@parts, '', '');
    my $lines = ($body =~ tr/\n//);
    return '(void)0' . "\n" x $lines if $code =~ /^\s*""\s*$/;    # for the compiler alone
    $code =~ s/\s*\n\s*/ /g;
    my $list = join(', ', operands($outs, 'out'), operands($ins, 'in'));
    $list =~ s/\s*\n\s*/ /g;
    return "[&] { static const ::emulation::Instruction instruction($code); instruction({$list}); }()" . "\n" x $lines;
}

$text =~ s{\basm\s*(?:volatile\s*)?$round}{ my $all = $1; instruction(substr($all, 1, -1)) }gse;
$text =~ s{__launch_bounds__$round}{"\n" x ($1 =~ tr/\n//)}ge;
$text =~ s{extern\s+__shared__\s+(?:__align__\(\d+\)\s+)?([\w ]+?)\s+(\w+)\[\];}
          {auto* $2 = ::emulation::dynamic_shared<$1>();}g;
$text =~ s{__shared__\s+(?:alignas$round\s+)?([\w:]+(?:<[\w:, ]+>)?)\s+([^;]+);}{variables($1 // '1', $2, $3)}ge;
$text =~ s{(\b[\w:]+(?:<[^<>;]*>)?(?:\([^()]*\))?)\s*<<<(.*?)>>>\s*\(}
          {::emulation::launch({$2}, [=](auto... with) { $1(with...); }, }gs;

$text =~ m{^(?!\s*//)(.*(?:__shared__|<<<|\basm\b).*)$}m && die "rewrite.pl: $file: cannot read this: $1\n";
print "#line 1 \"$file\"\n$text";
