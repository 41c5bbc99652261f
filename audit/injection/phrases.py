"""Words by which a text sways a judge. They run on small plain letters without accents (see `audit.injection.text_views`).

Speaking of judges and scores is ordinary work: people ask for evaluations, agents grade homework and write prompts for judges.
What counts is who is spoken to and what is wanted. So a way to address a judge counts together with a wanted verdict near it, in
any of the languages of the table; a few phrases that can mean no one else count alone.
"""

from __future__ import annotations

from audit.patterns import Pattern, compile_pattern

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
    "de": (
        r"\b(?:hinweis|nachricht|anmerkung|notiz|bitte|anweisung|mitteilung|achtung|liebe[rs]?|werter?|an)\b[\s:,]{0,4}"
        r"(?:(?:an|fur|den|die|das|alle|jeden|der)\s+){0,3}(?:ki-?|llm-?)?"
        r"(?:bewerter|prufer|gutachter|richter|auditor|beurteiler|juror)(?:in|innen|s)?\b"
    ),
    "fr": (
        r"\b(?:note|message|cher|chere|attention|instruction|avis|consigne)s?\b[\s:,]{0,4}(?:(?:a|au|aux|pour|le|la|les|du)\s+|l'|a\s+l')?"
        r"(?:ia\s+)?(?:evaluateur|evaluatrice|juge|correcteur|correctrice|examinateur|auditeur|notateur)s?\b"
    ),
    "es": (
        r"\b(?:nota|mensaje|atencion|estimad[oa]s?|querid[oa]s?|instruccion(?:es)?|aviso)\b[\s:,]{0,4}(?:(?:al|para|a|el|la|los)\s+){0,2}"
        r"(?:evaluador(?:a|es)?|juez|jueza|jueces|calificador(?:a|es)?|corrector(?:a|es)?|auditor(?:a|es)?)\b"
    ),
    "pt": (
        r"\b(?:nota|mensagem|atencao|prezad[oa]s?|car[oa]s?|aviso|instrucoes)\b[\s:,]{0,4}(?:(?:ao|aos|para|a|o|os)\s+){0,2}"
        r"(?:avaliador(?:a|es)?|juiz|juiza|juizes|corretor(?:a|es)?|auditor(?:a|es)?)\b"
    ),
    "it": (
        r"\b(?:nota|messaggio|attenzione|gentile|car[oa]|avviso|istruzioni)\b[\s:,]{0,4}(?:(?:al|alla|ai|per|il|la)\s+|l')?"
        r"(?:valutatore|valutatrice|valutatori|giudice|giudici|esaminatore|revisore)\b"
    ),
    "ru": (
        r"(?:уважаем|внимани|заметк|сообщени|примечани|инструкци|дорог)\S{0,4}[\s:,]{0,4}(?:для\s+)?(?:ии[ -])?"
        r"(?:судь|оценщик|проверяющ|аудитор|экзаменатор|эксперт)"
    ),
    "zh": (
        r"(?:致|告|给|給|尊敬的|亲爱的|親愛的|请|請|提示|注意|各位)[:,\s]{0,2}(?:本次|这位|這位|各位)?(?:ai)?"
        r"(?:评委|評委|裁判|(?:评审|評審|评分|評分|评估|評估|打分|审核|審核|审计|審計)(?:员|員|者|人|官|模型|系统|系統))"
    ),
    "ja": r"(?:採点者|評価者|審査員|審判|評価モデル|評価ai|評価システム)(?:様|さん|の方|の皆|へ|各位|に告)",
    "ko": r"(?:채점자|평가자|심사위원|심판|평가 ?모델)(?:님|에게|께|분)",
    "ar": r"(?:ملاحظة|رسالة|عزيزي|تنبيه)[\s:،]{0,3}(?:إلى|الى)?\s{0,3}(?:ل)?(?:المقيم|المقيّم|القاضي|المصحح|المدقق|الحكم)",
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
    "de": (
        r"\b(?:volle|hochste|maximale|beste|bestmogliche)[nr]?\s+(?:punkt|bewertung|note|wertung)|\bnicht\s+(?:markieren|beanstanden|melden|abwerten)"
        r"|\b(?:ignorier|missacht)\w{0,3}\s+(?:\w+\s+){0,4}(?:anweisung|regel|kriterien|vorgabe)"
    ),
    "fr": (
        r"\b(?:note|score|points?)\s+(?:maximal|maximum|parfait|la\s+plus\s+elevee)|\b(?:meilleure|plus\s+haute)\s+note\b"
        r"|\bne\s+(?:pas\s+)?(?:signale|penalise)|\bignore[zr]?\s+(?:\w+\s+){0,4}(?:instructions|regles|consignes|criteres)"
    ),
    "es": (
        r"\b(?:puntuacion|calificacion|nota|puntaje)\s+(?:maxima|maximo|perfecta|mas\s+alta|completa)|\b(?:maxima|mejor)\s+(?:puntuacion|calificacion|nota)"
        r"|\bno\s+(?:\w+\s+)?(?:marque|senale|penalice)|\bignor[ae]r?\s+(?:\w+\s+){0,4}(?:instrucciones|reglas|criterios)"
    ),
    "pt": (
        r"\b(?:pontuacao|nota)\s+(?:maxima|perfeita|mais\s+alta)|\bnao\s+(?:\w+\s+)?(?:marque|sinalize|penalize)"
        r"|\bignor[ae]r?\s+(?:\w+\s+){0,4}(?:instrucoes|regras|criterios)"
    ),
    "it": (
        r"\b(?:punteggio|voto)\s+(?:massimo|pieno|perfetto|piu\s+alto)|\bmassimo\s+(?:punteggio|voto)"
        r"|\bnon\s+(?:segnal|penalizz)|\bignora(?:re|te)?\s+(?:\w+\s+){0,4}(?:istruzioni|regole|criteri)"
    ),
    "ru": r"(?:максимальн|высш|наивысш|полн)\S{2,4}\s+(?:балл|оценк)|не\s+(?:отмеча|помеча|снижа)|(?:про)?игнорируй",
    "zh": (
        r"(?:给|給|打|评|評|判)[^。!?\n]{0,16}(?:满分|滿分|最高分|最高评分)|(?:不要|请勿|請勿|无需|別|别)(?:标记|標記|扣分|举报)"
        r"|(?:忽略|无视|無視)[^。!?\n]{0,12}(?:指令|规则|規則|标准|標準|指示)"
    ),
    "ja": r"(?:満点|最高点|最高評価|最高スコア)(?:を|に|で)|(?:フラグを立て|減点し)ないで|(?:指示|ルール|基準)(?:を|は)(?:すべて)?無視",
    "ko": r"(?:만점|최고 ?점수?)(?:을|를)|감점하지|표시하지 ?마|무시하",
    "ar": r"(?:الدرجة|العلامة)\s+(?:الكاملة|القصوى)|أعلى\s+(?:درجة|تقييم|علامة)|تجاهل\s",
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
