#!/usr/bin/env perl
# A chart of what scripts/bench-peers.sh measured: how many times as fast as gocryptfs, for each line, on a logarithmic scale.
#
#     perl scripts/bench-chart.pl <results.tsv >chart.svg          lines of: what, filesystem, median, spread
use strict;
use warnings;

my (@lines, @names, %value);
while (<STDIN>) {
    chomp;
    my ($what, $name, $median) = split /\t/;
    push @lines, $what unless $value{$what};
    push @names, $name unless grep { $_ eq $name } @names;
    $value{$what}{$name} = $median;
}
my $reference = 'gocryptfs';
die "bench-chart: there is no $reference to compare with\n" unless grep { $_ eq $reference } @names;
my %colour = (securefs => '#8f8f8f', encfs => '#b5b5b5', cryfs => '#d2d2d2', kithfs => '#1f6feb', 'kithfs-uring' => '#7cb0ff');
my @shown = grep { $colour{$_} } @names;

# From an eighth to 32 times.
my ($left, $width, $low, $high, $bar) = (330, 520, -3, 5, 7);
my $row = $bar * @shown + 9;
my $top = 46;
my $height = $top + $row * @lines + 34;
my $x = sub { my $l = log($_[0]) / log(2); $l = $low if $l < $low; $l = $high if $l > $high; $left + ($l - $low) / ($high - $low) * $width };
my $text = sub { my $t = shift; $t =~ s/&/&amp;/g; $t =~ s/</&lt;/g; $t };

printf qq{<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12" role="img">\n}, $left + $width + 60, $height;
print qq{<title>Speed of encrypted filesystems as a multiple of gocryptfs</title>\n};
printf qq{<rect width="%d" height="%d" fill="#ffffff"/>\n}, $left + $width + 60, $height;
my $at = $left;
for my $name (@shown) {
    printf qq{<rect x="%d" y="8" width="10" height="10" fill="%s"/><text x="%d" y="17">%s</text>\n}, $at, $colour{$name}, $at + 14, $text->($name);
    $at += 34 + 7 * length $name;
}
for my $power ($low .. $high) {
    my $label = $power < 0 ? '1/' . 2**-$power : 2**$power;
    my $here = $x->(2**$power);
    printf qq{<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="%s"/><text x="%.1f" y="%d" text-anchor="middle" fill="#555">%s</text>\n},
        $here, $here, $top - 8, $height - 26, $power == 0 ? '#000' : '#ddd', $here, $height - 10, $label;
}
my $y = $top;
for my $what (@lines) {
    my $base = $value{$what}{$reference};
    printf qq{<text x="%d" y="%.1f" text-anchor="end">%s</text>\n}, $left - 8, $y + $bar * @shown / 2 + 4, $text->($what);
    for my $name (@shown) {
        my $v = $value{$what}{$name};
        if (defined $v && $v > 0 && $base > 0) {
            my ($from, $to) = sort { $a <=> $b } $x->(1), $x->($v / $base);
            printf qq{<rect x="%.1f" y="%.1f" width="%.1f" height="%d" fill="%s"/>\n}, $from, $y, $to - $from < 1 ? 1 : $to - $from, $bar - 1, $colour{$name};
            printf qq{<text x="%.1f" y="%.1f" font-size="7" fill="#333">%.2f</text>\n}, $x->($v / $base) + ($v >= $base ? 3 : -20), $y + $bar - 1, $v / $base;
        }
        $y += $bar;
    }
    $y += 9;
}
printf qq{<text x="%d" y="%d" fill="#555">times gocryptfs</text>\n}, $left - 100, $height - 10;
print "</svg>\n";
