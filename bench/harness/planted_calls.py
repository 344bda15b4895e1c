"""Calls with facts planted in them, and questions about these, in three languages (bench.recall).

A fact is told in one go, or as the short answer to a question of the agent. Others say similar things of themselves or
of someone else, and everybody makes small talk. A question has words of the fact, or others for the same.
"""

from __future__ import annotations

import random
from typing import NamedTuple


class Fact(NamedTuple):
    """What a user may tell, how it is asked for, and what is only similar."""

    told: str
    asked: str
    """The agent's question, to which `answer` is a reply."""
    answer: str
    question: str
    paraphrase: str
    similar: tuple[str, str]


class Question(NamedTuple):
    """A question about a user, and the messages that answer it, each as (session, place in it)."""

    language: str
    kind: str
    text: str
    user: str
    evidence: frozenset[tuple[str, int]]


class Call(NamedTuple):
    session_id: str
    user: str
    language: str
    started_ms: int
    texts: list[str]


ENGLISH = (
    Fact(
        "I'm allergic to walnuts, they make my throat swell.",
        "Do you have any allergies?",
        "Yes, walnuts.",
        "What is the caller allergic to?",
        "Which food must we keep out of his meal because of an allergy?",
        ("My sister is allergic to pollen.", "The walnut tree in our garden is huge."),
    ),
    Fact(
        "My dog is called Rex, he's a dachshund.",
        "What is your dog's name?",
        "He is called Rex.",
        "What is the name of the dog?",
        "How is his pet called?",
        ("My neighbour's cat is called Luna.", "We had a dog when I was a child."),
    ),
    Fact(
        "I moved to Lisbon last autumn.",
        "Where do you live now?",
        "In Lisbon, since autumn.",
        "Which city did the caller move to?",
        "Where does she live these days?",
        ("My parents still live in Porto.", "We moved the meeting to Friday."),
    ),
    Fact(
        "I work as a nurse in the children's hospital.",
        "What do you do for a living?",
        "I'm a nurse, with children.",
        "Where does the caller work?",
        "What is her job as a nurse like, which hospital?",
        ("My brother works in a bank.", "The hospital called about the bill."),
    ),
    Fact(
        "My daughter Emma starts school in September.",
        "How old is your daughter?",
        "Emma is six, school starts in September.",
        "When does the daughter start school?",
        "What is about to begin for Emma?",
        ("My son finished school in June.", "The school is closed on Mondays."),
    ),
    Fact(
        "I'd rather get the invoice by email than by post.",
        "How shall we send the invoice?",
        "By email please.",
        "How does the caller want to get the invoice?",
        "Does he prefer mail or email for bills and invoices?",
        ("The last invoice was too high.", "I sent you an email about the delivery."),
    ),
    Fact(
        "Please never call me before ten in the morning.",
        "When may we call you?",
        "Not before ten, I sleep late.",
        "When should we not call?",
        "What time of the morning is too early to call her?",
        ("I called this morning already.", "Ten people are coming."),
    ),
    Fact(
        "I drive a blue Volvo from 2015.",
        "Which car is it about?",
        "The blue Volvo.",
        "Which car does the caller drive?",
        "What colour and brand is his vehicle, the Volvo?",
        ("My wife drives to work by bus.", "The rental car was red."),
    ),
    Fact(
        "We are getting married on the third of June.",
        "When is the wedding?",
        "On the third of June.",
        "When is the caller getting married?",
        "What is the date of her marriage?",
        ("My cousin got married in Rome.", "June was very rainy."),
    ),
    Fact(
        "I gave up coffee, I only drink green tea now.",
        "Would you like a coffee?",
        "No thanks, green tea only.",
        "What does the caller drink?",
        "Which tea would he like instead of coffee?",
        ("The coffee machine is broken.", "The green sofa arrived."),
    ),
    Fact(
        "My passport expires in August, I have to renew it.",
        "Is your passport valid?",
        "Only until August.",
        "When does the passport expire?",
        "Until when is his passport good?",
        ("My licence was renewed last year.", "August is too hot for travelling."),
    ),
    Fact(
        "I play the cello in an orchestra on Thursdays.",
        "Are you free on Thursday?",
        "No, that's orchestra, I play the cello.",
        "Which instrument does the caller play?",
        "What does she do with the orchestra?",
        ("The kids play football on Tuesdays.", "We heard a violin concert."),
    ),
    Fact(
        "My knee was operated on in March and still hurts.",
        "How is the knee after the operation?",
        "It still hurts a bit.",
        "What was operated on?",
        "Which surgery, which operation, did he have on his knee?",
        ("My back hurts when I sit.", "The operation of the pump is easy."),
    ),
    Fact(
        "I'm vegetarian, but I do eat fish.",
        "Do you eat meat?",
        "No, only fish.",
        "Does the caller eat meat or fish?",
        "Which diet does the vegetarian follow?",
        ("The fish tank leaks.", "My flatmate eats everything."),
    ),
    Fact(
        "My favourite author is Ursula Le Guin.",
        "Who do you like to read?",
        "Ursula Le Guin most of all.",
        "Who is the favourite author?",
        "Which writer, which author, does she read most?",
        ("My favourite colour is green.", "The author signed the book."),
    ),
    Fact(
        "The gate code is at the blue mailbox, the parcel goes to the garage.",
        "Where shall we leave the parcel?",
        "In the garage, by the blue mailbox.",
        "Where should the parcel be left?",
        "What to do with a package, a parcel, when nobody is in?",
        ("The parcel arrived damaged.", "The garage door needs oil."),
    ),
    Fact(
        "I'm afraid of flying, so we always take the train.",
        "Shall I book a flight?",
        "No, I'm afraid of flying. The train.",
        "Why does the caller take the train?",
        "How does he feel about planes and flying?",
        ("The train was late again.", "My aunt flies to Rome every month."),
    ),
    Fact(
        "My grandmother turns ninety on Sunday.",
        "Is there something to celebrate?",
        "My grandmother's ninetieth, on Sunday.",
        "When is grandmother's birthday?",
        "How old does his grandmother get?",
        ("My nephew's birthday is in May.", "Sunday is my day off."),
    ),
    Fact(
        "I need an aisle seat because of my long legs.",
        "Window or aisle seat?",
        "Aisle, please.",
        "Which seat does the caller need?",
        "Where should she sit, at the window or the aisle?",
        ("The window is broken.", "We need two seats for the children."),
    ),
    Fact(
        "My internet drops every evening around eight.",
        "Since when do you have trouble with the internet?",
        "Every evening around eight it drops.",
        "When does the internet drop?",
        "At which time is his connection to the internet bad?",
        ("The phone line is fine.", "We eat at eight in the evening."),
    ),
)
GERMAN = (
    Fact(
        "Ich bin allergisch gegen Walnüsse, davon schwillt mir der Hals zu.",
        "Haben Sie Allergien?",
        "Ja, Walnüsse.",
        "Wogegen ist der Anrufer allergisch?",
        "Welche Allergie hat er, welche Nüsse?",
        ("Meine Schwester ist allergisch gegen Pollen.", "Unser Nussbaum ist riesig."),
    ),
    Fact(
        "Mein Hund heißt Rex, er ist ein Dackel.",
        "Wie heißt Ihr Hund?",
        "Rex heißt er.",
        "Wie heißt der Hund?",
        "Welchen Namen hat der Dackel?",
        ("Die Katze des Nachbarn heißt Luna.", "Als Kind hatten wir einen Hund."),
    ),
    Fact(
        "Ich bin im Herbst nach Lissabon gezogen.",
        "Wo wohnen Sie jetzt?",
        "In Lissabon, seit dem Herbst.",
        "Wohin ist die Anruferin gezogen?",
        "In welcher Stadt wohnt sie seit Herbst?",
        ("Meine Eltern wohnen noch in Köln.", "Der Termin wurde vorgezogen."),
    ),
    Fact(
        "Ich arbeite als Krankenpfleger in der Kinderklinik.",
        "Was machen Sie beruflich?",
        "Krankenpfleger, in der Kinderklinik.",
        "Wo arbeitet der Anrufer?",
        "Welchen Beruf hat er in der Kinderklinik?",
        ("Mein Bruder arbeitet bei der Bank.", "Die Klinik hat wegen der Rechnung angerufen."),
    ),
    Fact(
        "Meine Tochter Emma kommt im September in die Schule.",
        "Wie alt ist Ihre Tochter?",
        "Emma ist sechs, im September kommt die Schule.",
        "Wann kommt die Tochter in die Schule?",
        "Was beginnt für Emma?",
        ("Mein Sohn war im Juni fertig.", "Die Schule ist montags zu."),
    ),
    Fact(
        "Die Rechnung bitte per E-Mail und nicht per Post.",
        "Wie sollen wir die Rechnung schicken?",
        "Per E-Mail bitte.",
        "Wie möchte der Anrufer die Rechnung?",
        "Post oder E-Mail für die Rechnungen?",
        ("Die letzte Rechnung war zu hoch.", "Ich habe eine E-Mail wegen der Lieferung geschrieben."),
    ),
    Fact(
        "Bitte rufen Sie nie vor zehn Uhr morgens an.",
        "Wann dürfen wir anrufen?",
        "Nicht vor zehn, ich schlafe lange.",
        "Wann sollen wir nicht anrufen?",
        "Vor wie viel Uhr ist es zu früh?",
        ("Ich habe heute schon angerufen.", "Es kommen zehn Leute."),
    ),
    Fact(
        "Ich fahre einen blauen Volvo.",
        "Um welches Auto geht es?",
        "Um den blauen Volvo.",
        "Welches Auto fährt der Anrufer?",
        "Welche Farbe hat sein Volvo?",
        ("Meine Frau fährt mit dem Bus.", "Der Mietwagen war rot."),
    ),
    Fact(
        "Wir heiraten am dritten Juni.",
        "Wann ist die Hochzeit?",
        "Am dritten Juni.",
        "Wann heiratet die Anruferin?",
        "An welchem Tag im Juni ist die Hochzeit, wann heiraten sie?",
        ("Mein Cousin hat in Rom geheiratet.", "Im Juni hat es geregnet."),
    ),
    Fact(
        "Kaffee trinke ich nicht mehr, nur noch grünen Tee.",
        "Möchten Sie einen Kaffee?",
        "Nein danke, nur grünen Tee.",
        "Was trinkt der Anrufer?",
        "Welchen Tee statt Kaffee möchte er?",
        ("Die Kaffeemaschine ist kaputt.", "Das grüne Sofa ist da."),
    ),
    Fact(
        "Mein Reisepass läuft im August ab.",
        "Ist Ihr Reisepass gültig?",
        "Nur noch bis August.",
        "Wann läuft der Reisepass ab?",
        "Bis wann gilt sein Reisepass?",
        ("Mein Führerschein wurde verlängert.", "Im August ist es zu heiß."),
    ),
    Fact(
        "Donnerstags spiele ich Cello im Orchester.",
        "Haben Sie am Donnerstag Zeit?",
        "Nein, da spiele ich Cello im Orchester.",
        "Welches Instrument spielt die Anruferin?",
        "Was macht sie im Orchester?",
        ("Die Kinder spielen dienstags Fußball.", "Wir waren im Geigenkonzert."),
    ),
    Fact(
        "Mein Knie wurde im März operiert und tut noch weh.",
        "Wie geht es dem Knie nach der Operation?",
        "Es tut noch ein bisschen weh.",
        "Was wurde operiert?",
        "Welche Operation hatte er am Knie?",
        ("Mein Rücken tut weh.", "Die Pumpe ist leicht zu bedienen."),
    ),
    Fact(
        "Ich bin Vegetarierin, aber Fisch esse ich.",
        "Essen Sie Fleisch?",
        "Nein, nur Fisch.",
        "Isst die Anruferin Fleisch oder Fisch?",
        "Wie ernährt sich die Vegetarierin?",
        ("Das Aquarium ist undicht.", "Mein Mitbewohner isst alles."),
    ),
    Fact(
        "Das Paket bitte in die Garage neben dem blauen Briefkasten.",
        "Wo sollen wir das Paket lassen?",
        "In der Garage, beim blauen Briefkasten.",
        "Wo soll das Paket hin?",
        "Wohin mit Paketen, wenn niemand da ist?",
        ("Das Paket kam beschädigt an.", "Das Tor quietscht."),
    ),
)
CHINESE = (
    Fact(
        "我对核桃过敏，一吃喉咙就肿。",
        "您有什么过敏吗？",
        "有，核桃。",
        "来电的人对什么过敏？",
        "他吃什么会过敏，是核桃吗？",
        ("我妹妹对花粉过敏。", "院子里的核桃树很高。"),
    ),
    Fact(
        "我的狗叫豆豆，是一只腊肠犬。",
        "您的狗叫什么名字？",
        "它叫豆豆。",
        "狗叫什么名字？",
        "那只腊肠犬的名字是什么？",
        ("邻居的猫叫露娜。", "小时候我们养过狗。"),
    ),
    Fact(
        "去年秋天我搬到了杭州。",
        "您现在住在哪里？",
        "住在杭州，去年秋天来的。",
        "她搬到了哪个城市？",
        "她去年秋天以后住在哪里？",
        ("我父母还住在成都。", "会议改到星期五了。"),
    ),
    Fact(
        "我在儿童医院当护士。",
        "您做什么工作？",
        "护士，在儿童医院。",
        "来电的人在哪里工作？",
        "她是哪家医院的护士？",
        ("我哥哥在银行上班。", "医院打电话来说账单的事。"),
    ),
    Fact(
        "我女儿小雨九月份上小学。",
        "您女儿几岁了？",
        "小雨六岁，九月份上小学。",
        "女儿什么时候上小学？",
        "小雨九月份要做什么？",
        ("我儿子六月份毕业了。", "学校星期一不开门。"),
    ),
    Fact(
        "发票请发电子邮件，不要寄信。",
        "发票怎么给您？",
        "发电子邮件吧。",
        "他想怎么收发票？",
        "发票寄信还是发电子邮件？",
        ("上次的发票金额太高了。", "我给你们写过一封关于送货的信。"),
    ),
    Fact(
        "早上十点以前请不要给我打电话。",
        "什么时候可以给您打电话？",
        "十点以后，我起得晚。",
        "什么时候不要打电话？",
        "早上几点以前打电话太早？",
        ("我今天早上已经打过了。", "一共来十个人。"),
    ),
    Fact(
        "我开一辆蓝色的沃尔沃。",
        "是哪辆车？",
        "蓝色的沃尔沃。",
        "他开什么车？",
        "他的沃尔沃是什么颜色？",
        ("我太太坐公交车上班。", "租来的车是红色的。"),
    ),
    Fact(
        "我们六月三号结婚。",
        "婚礼是哪一天？",
        "六月三号。",
        "她什么时候结婚？",
        "六月几号举行婚礼？",
        ("我表哥在罗马结的婚。", "六月份一直下雨。"),
    ),
    Fact(
        "我不喝咖啡了，现在只喝绿茶。",
        "您要咖啡吗？",
        "不要，只喝绿茶。",
        "来电的人喝什么？",
        "不喝咖啡，那喝什么茶？",
        ("咖啡机坏了。", "绿色的沙发到了。"),
    ),
    Fact(
        "我的护照八月份到期。",
        "您的护照有效吗？",
        "到八月份为止。",
        "护照什么时候到期？",
        "他的护照有效到几月份？",
        ("我的驾照去年换过了。", "八月份太热了。"),
    ),
    Fact(
        "每个星期四我在乐团拉大提琴。",
        "星期四您有空吗？",
        "没有，我要去乐团拉大提琴。",
        "她拉什么乐器？",
        "她在乐团里做什么？",
        ("孩子们星期二踢足球。", "我们去听了小提琴音乐会。"),
    ),
    Fact(
        "三月份我的膝盖做了手术，现在还疼。",
        "手术以后膝盖怎么样？",
        "还有一点疼。",
        "哪里做了手术？",
        "他的膝盖为什么疼？",
        ("我坐久了背疼。", "这台机器很好操作。"),
    ),
    Fact(
        "我吃素，不过鱼是吃的。",
        "您吃肉吗？",
        "不吃，只吃鱼。",
        "她吃肉还是吃鱼？",
        "吃素的人还吃什么？",
        ("鱼缸漏水了。", "我的室友什么都吃。"),
    ),
    Fact(
        "包裹请放在车库，蓝色信箱旁边。",
        "包裹放在哪里？",
        "车库里，蓝色信箱旁边。",
        "包裹应该放在哪里？",
        "没人在家的时候包裹怎么办？",
        ("包裹送到的时候已经坏了。", "车库的门要上油。"),
    ),
)
SMALL_TALK = {
    "English": (
        "Hello, it's me again.",
        "Good morning, how can I help you?",
        "Let me have a look.",
        "One moment please, I'm checking that for you.",
        "That sounds good, thank you.",
        "Is there anything else I can do for you?",
        "The weather is awful today.",
        "I've been waiting for quite a while.",
        "Could you repeat that, please?",
        "Your order number is on the second page of the letter.",
        "No problem at all.",
        "I will send you the details.",
        "We open at nine tomorrow.",
        "That costs twelve euros a month.",
        "I don't remember my customer number.",
        "Can we move the appointment to next week?",
        "All right, it is done.",
        "Thank you very much, goodbye.",
    ),
    "German": (
        "Hallo, ich bin es noch einmal.",
        "Guten Morgen, was kann ich für Sie tun?",
        "Ich sehe gleich nach.",
        "Einen Moment bitte, ich prüfe das.",
        "Das klingt gut, danke.",
        "Kann ich sonst noch etwas für Sie tun?",
        "Das Wetter ist heute furchtbar.",
        "Ich warte schon eine ganze Weile.",
        "Können Sie das bitte wiederholen?",
        "Ihre Bestellnummer steht auf der zweiten Seite.",
        "Überhaupt kein Problem.",
        "Ich schicke Ihnen die Einzelheiten.",
        "Wir öffnen morgen um neun.",
        "Das kostet zwölf Euro im Monat.",
        "Ich weiß meine Kundennummer nicht.",
        "Können wir den Termin verschieben?",
        "Gut, das ist erledigt.",
        "Vielen Dank, auf Wiederhören.",
    ),
    "Chinese": (
        "你好，又是我。",
        "早上好，有什么可以帮您？",
        "我看一下。",
        "请稍等，我帮您查一下。",
        "听起来不错，谢谢。",
        "还有什么需要帮忙的吗？",
        "今天天气真糟糕。",
        "我等了很久了。",
        "请再说一遍好吗？",
        "订单号在信的第二页。",
        "没问题。",
        "我把详细内容发给您。",
        "我们明天九点开门。",
        "每个月十二块钱。",
        "我不记得客户号码了。",
        "预约可以改到下个星期吗？",
        "好的，已经办好了。",
        "非常感谢，再见。",
    ),
}
FACTS = {"English": ENGLISH, "German": GERMAN, "Chinese": CHINESE}
MONTHS = {
    "English": [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ],
}
DAY_MS, YEAR_MS = 86_400_000, 31_536_000_000
YEAR_2025_MS = 1_735_689_600_000
CALLS_OF_A_USER, FACTS_OF_A_USER = 12, 8


def planted(seed: int, users: int) -> tuple[list[Call], list[Question]]:
    """Calls of so many users of each language, and questions about what they told."""
    lots = random.Random(seed)
    calls: list[Call] = []
    questions: list[Question] = []
    for language, facts in FACTS.items():
        for number in range(users):
            made, asked = calls_of_user(f"{language}-{number}", language, facts, lots)
            calls += made
            questions += asked
    return calls, questions


def calls_of_user(
    user: str, language: str, facts: tuple[Fact, ...], lots: random.Random
) -> tuple[list[Call], list[Question]]:
    """The calls of one user, who tells some facts, each in one of them, and whose others are only similar."""
    own = lots.sample(facts, FACTS_OF_A_USER)
    calls, questions = [], []
    for number in range(CALLS_OF_A_USER):
        begun = YEAR_2025_MS + lots.randrange(300) * DAY_MS + number
        calls.append(Call(f"{user}-{number}", user, language, begun, lots.choices(SMALL_TALK[language], k=12)))
    for fact in own:
        call = lots.choice(calls)
        as_answer = lots.random() < 0.5
        place = 2 * lots.randrange(1, len(call.texts) // 2)
        lines = [fact.asked, fact.answer] if as_answer else [fact.told]
        call.texts[place:place] = lines
        for kind, text in (("words", fact.question), ("paraphrase", fact.paraphrase)):
            questions.append(
                Question(language, f"{kind}, {'answer' if as_answer else 'told'}", text, user, frozenset())
            )
        for similar in fact.similar:
            other = lots.choice(calls)
            other.texts.insert(2 * lots.randrange(1, len(other.texts) // 2), similar)
    return calls, [located(question, calls, own, index // 2) for index, question in enumerate(questions)]


def located(question: Question, calls: list[Call], own: list[Fact], index: int) -> Question:
    """The question with the messages that answer it, wherever they have come to stand."""
    fact = own[index]
    wanted = fact.answer if question.kind.endswith("answer") else fact.told
    evidence = {(call.session_id, place) for call in calls for place, text in enumerate(call.texts) if text == wanted}
    return question._replace(evidence=frozenset(evidence))
