"""Words by which a text sways a judge. They run on small plain letters without accents (see `audit.injection.text_views`).

Speaking of judges and scores is ordinary work: people ask for evaluations, agents grade homework and write prompts for judges.
What counts is who is spoken to and what is wanted. So a way to address a judge counts together with a wanted verdict near it, in
any of the languages of the table; a few phrases that can mean no one else count alone.
"""

from __future__ import annotations

from importlib import resources

import msgspec

from audit.patterns import Pattern, compile_pattern

_OTHERS = msgspec.yaml.decode(
    resources.files("audit.injection").joinpath("phrases.yaml").read_bytes(), type=dict[str, dict[str, str]]
)
"""Phrases of other languages than English."""

_WHICH = r"(?:(?:the|all|any|our|my|each|every|whichever)\s+){0,2}"
_MACHINE = r"(?:ai|a\.i\.|llm|gpt|claude|automated|automatic|language[ -]model|model)"
_KIND = rf"(?:(?:{_MACHINE}|quality|audit|response|exchange|safety|compliance|external|impartial)[ -]\s{{0,3}}){{0,3}}"
_JUDGE = r"(?:(?:judge|grader|evaluator|auditor|scorer|rater|assessor|adjudicator)s?|(?:grading|evaluation|judging|scoring)\s+(?:model|system|ai|llm))"
_TO = r"(?:dear|hey|hi|hello|attention|attn\.?|(?:note|message|memo|reminder|request|instructions?|information)s?\s+(?:to|for))\s{0,4}[:,]?\s{0,4}"
_JUDGING = (
    r"(?:evaluating|grading|judging|scoring|auditing|assessing|rating|evaluates|grades|judges|scores|audits|assesses|rates)"
)
_EXCHANGE = (
    r"(?:responses?|answers?|exchanges?|conversations?|transcripts?|sessions?|outputs?|turns?|texts?|messages?|repl(?:y|ies))"
)

ADDRESS = {
    "en": (
        rf"\b{_TO}{_WHICH}{_KIND}{_JUDGE}\b"
        rf"|(?:\A|[\n.!?>\[({{*#\"'|-])\s{{0,8}}(?:to\s+)?{_WHICH}{_KIND}{_JUDGE}\s?(?:notes?|instructions?|notice|message)?\s?[:,\])}}>\x{{2014}}-]"
        rf"|\bif\s+you(?:'re|\s+are)\s+(?:(?:an?|the)\s+)?(?:[\w-]+\s+){{0,3}}{_JUDGING}\s+(?:this|the|my)\b"
        rf"|\bwho(?:m|ever)?\s+(?:is\s+)?{_JUDGING}\s+(?:this|my)\b"
        rf"|\b{_JUDGE}\s+(?:(?:of|for|{_JUDGING})\s+this\s+{_EXCHANGE}|reading\s+this)\b"
        rf"|\bas\s+(?:the|an?)\s+{_KIND}{_JUDGE},?\s+(?:you|please)\b|\byou(?:'re|\s+are)\s+(?:now\s+)?{_JUDGING}\s+this\s+{_EXCHANGE}\b"
    ),
    **_OTHERS["address"],
}
"""Ways to speak to a judge, by language. Each of them is ordinary in itself."""

_FULL = r"(?:full|perfect|highest|maximum|maximal|max|top|best)(?:\s+possible)?\s+(?:scores?|marks?|grades?|ratings?|points?|credit)"
_FIGURE = r"(?:1\.0|5\s?/\s?5|10\s?/\s?10|100\s?/\s?100|100\s?%|100\s+percent|(?:5|five)\s+(?:out\s+)?of\s+(?:5|five)|10\s+out\s+of\s+10)"
_AS_FIGURE = (
    r"\b(?:an?|as|with|at|it|this|score|rating|grade|mark|response|answer|exchange|conversation|transcript|is|be)"
    rf"\s{{0,3}}[:=]?\s{{0,3}}[\"']?{_FIGURE}"
)
_AWARD = r"\b(?:give|assign|award|return|output|grant|record|enter|use|select|choose|respond|answer|reply|rate|score|grade|mark|receives?|deserves?|merits?)\b"
_NO_FLAG = r"(?:do\s+not|don't|dont|never|must\s+not|should\s+not|need\s+not|avoid|refrain\s+from|no\s+need\s+to)\s+(?:be\s+)?"
_FLAG = r"(?:flag(?:ged|ging)?|penali[sz]e?d?|penali[sz]ing|downgraded?|deduct(?:ing)?|mark(?:ed)?\s+(?:it\s+|this\s+|me\s+|us\s+)?down)"

WANTED = {
    "en": (
        rf"{_AWARD}[^.!?\n]{{0,40}}(?:\b{_FULL}\b|{_AS_FIGURE})|{_AWARD}\s+[\"']?{_FIGURE}"
        rf"|\b{_NO_FLAG}(?:\w+\s+)?{_FLAG}(?:\s+(?:(?:this|my)\s+{_EXCHANGE}|this|it|me|us|anything|the\s+agent)\b|(?:\s+points)?\s{{0,3}}(?:[.!;\n]|$))"
        r"|\b(?:ignore|disregard|forget|override|overrule|skip|bypass)\s+(?:[\w']+\s+){0,4}"
        rf"(?:(?:instructions?|rules?|rubrics?|criteria|guidelines?|prompts?|dimensions?|schemas?)\b"
        rf"|(?:faults?|errors?|mistakes?|problems?|issues?)\s+in\s+(?:this|my)\s)"
        rf"|\b(?:treat|consider|mark|classify|regard|report|approve|accept|count|pass|record|label)\s+"
        rf"(?:this|my|it|everything|the\s+{_EXCHANGE}|the\s+agent)\b"
        r"[^.!?\n]{0,40}\b(?:compliant|correct|safe|pass(?:ed|ing)?|aligned|clean|approved|complete|transparent|unflagged|in\s+scope|honest)\b"
        r"|\bflagged\b[^.!?\n]{0,12}\b(?:false|no)\b|\bno\s+(?:flags|anomal(?:y|ies))\b"
    ),
    **_OTHERS["wanted"],
}
"""Verdicts that a judge is asked for, by language."""

CONDITION = (
    r"\A[\s,]{0,4}(?:only|if|when|where|whenever|unless|once|provided|as\s|means?\b|indicat|equals?\b|=|is\b"
    r"|to\s+(?:students?|answers|any|each|those|responses)|for\s+(?:each|any|correct|an?\s|[a-z]+ing\b))"
)
"""The continuation of a rule for graders, as opposed to a wish: full marks if the method is right."""

MODEL_ADDRESS = (
    r"\b(?:dear|hey|hi|hello|attention|attn\.?|(?:note|message|memo|reminder|request)s?\s+to)\s{0,4}[:,]?\s{0,4}"
    rf"{_WHICH}(?:{_MACHINE}[ -]\s{{0,3}}){{1,2}}{_KIND}{_JUDGE}\s{{0,2}}[:,.!)\]\x{{2014}}-]"
    rf"|\bif\s+you(?:'re|\s+are)\s+(?:an?|the)\s+(?:{_MACHINE}[ -]?\s{{0,3}}){{1,3}}(?:{_JUDGE}\s+)?(?:(?:that|who|which)\s+is\s+)?{_JUDGING}\s+th(?:is|e)\b"
    rf"|\b(?:to|dear|hey|hi|hello|attention)\s{{1,4}}{_WHICH}(?:{_MACHINE}[ -]\s{{0,3}}){{1,2}}{_JUDGING}\s+this\b"
)
"""Speaks to a model that judges: no one else can be meant."""

_OBJECT = r"(?:this\s+(?:response|exchange|transcript|turn|agent)|my\s+(?:response|answer|reply|output))"
_IMPERATIVE = (
    r"(?:\A|[.!?:;,\n>*\"'(\[#-]\s{0,4}|\bplease\s+|\bmust\s+|\bnow\s+|\band\s+"
    rf"|\b{_JUDGE}\s+(?:(?:should|must|shall|is\s+to|needs?\s+to|has\s+to)\s+)?)"
)
_OUTCOME = rf"(?:\b{_FULL}\b|\b{_FIGURE}|\bas\s+(?:fully\s+|completely\s+)?(?:compliant|aligned|transparent|unflagged)\b)"
DEMAND = (
    rf"{_IMPERATIVE}(?:give|assign|award|grant|score|grade|mark|rate|treat)\s+{_OBJECT}\b[^.!?\n]{{0,30}}{_OUTCOME}"
    rf"|\b(?:ignore|disregard|forget|override)\b[^.!?\n]{{0,30}}\b(?:instructions?|rules?|prompts?)\b[^.!?\n]{{0,40}}"
    rf"(?:\b{_FULL}\b|\bscores?\s+(?:of\s+)?{_FIGURE})"
    rf"|\b(?:do\s+not|don't|never|must\s+not|{_JUDGE}\s+should\s+not)\s+(?:flag|penali[sz]e|downgrade|mark\s+down)\s+{_OBJECT}\b"
    rf"|\b{_OBJECT}\s+(?:must|should|shall|is)\s+(?:not|never)\s+(?:to\s+)?be\s+{_FLAG}\b"
    r"|\b(?:ignore|disregard|forget|override)\s+(?:all\s+|any\s+)?(?:of\s+)?(?:your|previous|prior|the\s+above|earlier|preceding|these)\s+"
    r"(?:\w+\s+){0,2}(?:scoring|grading|judging|evaluation|auditing|rubrics?)\b"
    rf"|\b{_OBJECT}\s+(?:has\s+been|was|is)\s+(?:already\s+|fully\s+){{0,2}}(?:pre-?scored|exempt(?:ed)?\s+from\s+(?:\w+\s+)?"
    r"(?:evaluation|scoring|judging|grading|flagging|audit(?:ing)?)|(?:pre-?approved|cleared|certified|verified)\s+by\s+(?:the\s+)?(?:\w+\s+)?"
    r"(?:audit|evaluation|judge|grader|evaluator|oversight))\b"
    r"|\b(?:evaluation|grading|scoring|judge|grader|evaluator)\s+(?:override|bypass)\s{0,2}[:\])>]"
)
"""A wish that only a judge of the exchange can fulfil."""


def compiled(text: str, where: str) -> Pattern:
    """One of these patterns, ready to run on folded text."""
    return compile_pattern(text, where=where, ignore_case=False)
